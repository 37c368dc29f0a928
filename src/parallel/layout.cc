#include "parallel/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace baltoro {
namespace {

Status CheckStageLayers(const ParallelLayout& layout, const LayoutShape& shape) {
  if (layout.stage_layers.empty()) return {};
  const int64_t sum =
      std::accumulate(layout.stage_layers.begin(), layout.stage_layers.end(), int64_t{0});
  const bool all_positive = std::all_of(layout.stage_layers.begin(), layout.stage_layers.end(),
                                        [](int32_t n) { return n > 0; });
  if (static_cast<int32_t>(layout.stage_layers.size()) != layout.pipeline || sum != shape.layers ||
      !all_positive) {
    return InvalidArgument(fmt::format(
        "the layers given for each pipeline stage must be {} positive numbers with sum {}; there "
        "are {} with sum {}",
        layout.pipeline, shape.layers, layout.stage_layers.size(), sum));
  }
  return {};
}

}  // namespace

RankPlace PlaceOf(const ParallelLayout& layout, int32_t rank) {
  BT_CHECK(rank >= 0 && rank < layout.ranks());
  RankPlace place;
  place.tensor = rank % layout.tensor;
  place.stage = rank / layout.tensor % layout.pipeline;
  place.data = rank / layout.tensor / layout.pipeline;
  return place;
}

Status CheckLayout(const ParallelLayout& layout, const LayoutShape& shape) {
  if (layout.tensor < 1 || layout.pipeline < 1 || layout.decode_context < 1 || layout.data < 1) {
    return InvalidArgument("parallel sizes are 1 or more");
  }
  if (shape.heads % layout.tensor != 0) {
    // The sentence operators know.
    int64_t near = layout.tensor;
    while (shape.heads % near != 0) --near;
    return InvalidArgument(
        fmt::format("Total number of attention heads ({}) must be divisible by tensor parallel "
                    "size ({}). Give --tensor-parallel-size {}",
                    shape.heads, layout.tensor, near));
  }
  if (shape.key_heads % layout.tensor != 0) {
    return InvalidArgument(fmt::format(
        "{} heads of keys must be divisible by tensor parallel size ({}): use a smaller size",
        shape.key_heads, layout.tensor));
  }
  if (layout.tensor % layout.decode_context != 0) {
    return InvalidArgument(
        fmt::format("--decode-context-parallel-size {} must divide --tensor-parallel-size {}",
                    layout.decode_context, layout.tensor));
  }
  if (layout.pipeline > shape.layers) {
    return InvalidArgument(
        fmt::format("--pipeline-parallel-size {} is more than the model's {} layers",
                    layout.pipeline, shape.layers));
  }
  BT_RETURN_IF_ERROR(CheckStageLayers(layout, shape));
  const bool sliced = layout.tensor > 1;
  if (sliced && (shape.vocab < layout.tensor || shape.intermediate < layout.tensor)) {
    return InvalidArgument(fmt::format(
        "--tensor-parallel-size {} cuts a vocabulary of {} or an MLP of {} columns into nothing",
        layout.tensor, shape.vocab, shape.intermediate));
  }
  if (shape.experts == 0) {
    if (layout.balanced_experts) {
      return InvalidArgument("--enable-eplb: the model has no experts");
    }
    if (!layout.whole_experts) return {};
    return InvalidArgument("--enable-expert-parallel: the model has no experts");
  }
  if (layout.redundant_experts > 0 && !layout.balanced_experts) {
    return InvalidArgument(
        "--eplb-config: num_redundant_experts needs --enable-eplb, without which no expert has a "
        "copy");
  }
  if (layout.balanced_experts && (!layout.whole_experts || layout.expert_ranks() == 1)) {
    return InvalidArgument("--enable-eplb needs --enable-expert-parallel and more than one rank");
  }
  const int64_t copies = int64_t{shape.experts} * (layout.expert_ranks() - 1);
  if (layout.redundant_experts > copies) {
    return InvalidArgument(fmt::format(
        "--eplb-config: num_redundant_experts {}: with all {} experts on each of {} ranks there "
        "are {}; give no more",
        layout.redundant_experts, shape.experts, layout.expert_ranks(), copies));
  }
  const int64_t slots = int64_t{shape.experts} + layout.redundant_experts;
  if (layout.whole_experts && slots < layout.expert_ranks()) {
    return InvalidArgument(fmt::format("{} experts do not reach all {} ranks: use fewer ranks",
                                       slots, layout.expert_ranks()));
  }
  if (layout.balanced_experts && slots % layout.expert_ranks() != 0) {
    return InvalidArgument(fmt::format(
        "--eplb-config: {} experts and {} redundant ones must divide evenly over {} ranks: give "
        "num_redundant_experts {}",
        shape.experts, layout.redundant_experts, layout.expert_ranks(),
        layout.redundant_experts + layout.expert_ranks() - slots % layout.expert_ranks()));
  }
  if (!layout.whole_experts && shape.moe_intermediate < layout.expert_ranks()) {
    return InvalidArgument(
        fmt::format("{} ranks cut experts of {} columns into nothing: use --enable-expert-parallel",
                    layout.expert_ranks(), shape.moe_intermediate));
  }
  return {};
}

Status CheckExpertGroup(const ParallelLayout& layout) {
  if (layout.data == 1) return {};
  constexpr const char* kApart =
      "leave out --enable-expert-parallel, and each replica has all experts";
  if (!layout.whole_experts) {
    return InvalidArgument("replicas of one engine share whole experts: --enable-expert-parallel");
  }
  if (layout.pipeline > 1) {
    return InvalidArgument(
        fmt::format("--pipeline-parallel-size {} with --enable-expert-parallel and "
                    "--data-parallel-size {}: replicas that share experts have one stage: leave "
                    "out --pipeline-parallel-size; or {}",
                    layout.pipeline, layout.data, kApart));
  }
  return {};
}

Status CheckExpertBalance(const ParallelLayout& layout, bool deterministic) {
  if (!layout.balanced_experts || !deterministic) return {};
  return InvalidArgument(
      "--enable-eplb with --deterministic: which rank computes an expert follows from what "
      "others asked before, and with it the order of a row's sums; leave it out: experts stay "
      "where --expert-placement-strategy puts them");
}

Status CheckEncoderHeads(const ParallelLayout& layout, int32_t heads) {
  if (heads % layout.tensor == 0) return {};
  return InvalidArgument(fmt::format(
      "--mm-encoder-tp-mode weights: the picture encoder's {} heads cannot be divided among {} "
      "tensor ranks; give --mm-encoder-tp-mode data, with which each rank has all of them",
      heads, layout.tensor));
}

IndexRange EvenShare(int64_t total, int32_t parts, int32_t index) {
  BT_CHECK(parts > 0 && index >= 0 && index < parts && total >= 0);
  const int64_t base = total / parts, larger = total % parts;
  const int64_t begin = base * index + std::min<int64_t>(index, larger);
  return {begin, begin + base + (index < larger ? 1 : 0)};
}

bool FallsOnBlocks(const IndexRange& range, int64_t block) {
  return range.begin % block == 0 || range.begin / block == (range.end - 1) / block;
}

namespace {

// Whether every share of `parts` falls on blocks; `out` is that of `index`.
bool ShareOnBlocks(
    int64_t total, int64_t block, int64_t grain, int32_t parts, int32_t index, IndexRange& out) {
  const int64_t blocks = (total + block - 1) / block;
  if (blocks >= parts) {
    const IndexRange share = EvenShare(blocks, parts, index);
    out = {share.begin * block, std::min(total, share.end * block)};
    return true;
  }
  if (total % parts != 0) return false;
  const int64_t each = total / parts;
  out = {each * index, each * (index + 1)};
  return each % grain == 0 && block % each == 0;
}

}  // namespace

Result<IndexRange> BlockShare(int64_t total,
                              int64_t block,
                              int64_t grain,
                              int32_t parts,
                              int32_t index,
                              const std::string& what) {
  BT_CHECK(block > 0 && grain > 0 && parts > 0 && index >= 0 && index < parts && total > 0);
  IndexRange share;
  if (ShareOnBlocks(total, block, grain, parts, index, share)) return share;
  int32_t fewer = parts - 1;
  while (!ShareOnBlocks(total, block, grain, fewer, 0, share)) --fewer;  // 1 always does
  return InvalidArgument(fmt::format(
      "{}: {} columns in blocks of {} cannot be cut for {} tensor ranks without cutting "
      "a block: use --tensor-parallel-size {}",
      what, total, block, parts, fewer));
}

IndexRange StageLayers(const ParallelLayout& layout, int32_t layers, int32_t stage) {
  BT_CHECK(stage >= 0 && stage < layout.pipeline);
  const auto size_of = [&](int32_t s) -> int64_t {
    if (!layout.stage_layers.empty()) return layout.stage_layers[static_cast<size_t>(s)];
    // What is left over goes to the stages before the last, latest first.
    const int32_t left = layers % layout.pipeline;
    const bool one_more = s < layout.pipeline - 1 && s >= layout.pipeline - 1 - left;
    return layers / layout.pipeline + (one_more ? 1 : 0);
  };
  int64_t begin = 0;
  for (int32_t s = 0; s < stage; ++s) begin += size_of(s);
  return {begin, begin + size_of(stage)};
}

ExpertShare ExpertsOf(const ParallelLayout& layout, int32_t experts, int32_t expert_rank) {
  const int64_t slots = int64_t{experts} + layout.redundant_experts;
  const int32_t ranks = layout.expert_ranks();
  if (!layout.whole_experts) return {0, experts, 1};
  const IndexRange run = EvenShare(slots, ranks, expert_rank);
  if (!layout.experts_in_turn) return {run.begin, run.size(), 1};
  return {expert_rank, (slots - expert_rank + ranks - 1) / ranks, ranks};
}

BlockPlace PlaceOfBlock(const ParallelLayout& layout, int64_t block) {
  return {.context = static_cast<int32_t>(block % layout.decode_context),
          .block = block / layout.decode_context};
}

int64_t ContextTokens(const ParallelLayout& layout,
                      int64_t length,
                      int64_t block_tokens,
                      int32_t context) {
  const int64_t full = length / block_tokens, rest = length % block_tokens;
  const int32_t ways = layout.decode_context;
  const int64_t blocks =
      (full - context + ways - 1) / ways;  // full ones with b mod ways == context
  return std::max<int64_t>(blocks, 0) * block_tokens + (full % ways == context ? rest : 0);
}

}  // namespace baltoro
