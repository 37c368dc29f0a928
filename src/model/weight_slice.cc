#include "model/weight_slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "parallel/expert_slots.h"
#include "weights/quant/matrix_codec.h"

namespace baltoro {
namespace {

// What must stay together of the rows or columns of a form.
int64_t BlockOf(WeightForm form) {
  switch (form) {
    case WeightForm::kF32:
    case WeightForm::kBf16:
      return 1;
    case WeightForm::kFp8Block:
      return kFp8Block;
    case WeightForm::kInt4Group:
    case WeightForm::kInt8Static:
    case WeightForm::kInt8:
    case WeightForm::kInt4:
      return kInt4Group;
  }
  return 1;
}

void KeepRows(PlannedRows& rows, const IndexRange& range) {
  if (rows.rows == 0) return;
  rows.first_row += range.begin;
  rows.rows = range.size();
}

// The range of every part of every matrix.
void KeepRows(PlannedMatrix& matrix, const IndexRange& range) {
  for (std::vector<MatrixPart>& parts : matrix.parts) {
    for (MatrixPart& part : parts) {
      part.row += range.begin;
      part.rows = range.size();
    }
    matrix.matrix.n = range.size() * std::ssize(parts);
  }
}

void KeepColumns(PlannedMatrix& matrix, const IndexRange& range) {
  for (std::vector<MatrixPart>& parts : matrix.parts) {
    for (MatrixPart& part : parts) {
      part.column = range.begin;
      part.columns = range.size();
    }
  }
  matrix.matrix.k = range.size();
}

// Where the matrices of a batch are those of heads or experts: which of them, each any number of
// times.
template <typename Numbers>
void KeepMatrices(PlannedMatrix& matrix, const Numbers& kept) {
  std::vector<std::vector<MatrixPart>> parts;
  for (const auto i : kept) parts.push_back(matrix.parts[static_cast<size_t>(i)]);
  matrix.parts = std::move(parts);
  matrix.matrix.count = std::ssize(matrix.parts);
}

class Slicer {
 public:
  Slicer(const K2Config& config, const RankShare& share)
      : config_(config), share_(share), heads_(share.heads(config)) {}

  Status Slice(PlannedLayer& layer) {
    BT_RETURN_IF_ERROR(SliceAttention(layer));
    BT_RETURN_IF_ERROR(SliceMlp(layer.mlp, share_.layout.tensor, share_.place.tensor));
    if (!share_.layout.whole_experts) {
      return SliceMlp(layer.experts, share_.layout.expert_ranks(),
                      share_.place.expert(share_.layout));
    }
    const std::vector<int32_t> held = share_.held_experts(config_);
    for (PlannedMatrix* matrix : {&layer.experts.gate_up, &layer.experts.down}) {
      if (!matrix->parts.empty()) KeepMatrices(*matrix, held);
    }
    return {};
  }

  Status SliceVocabulary(PlannedRows& embedding, PlannedMatrix& head) {
    KeepRows(embedding, share_.vocab(config_));
    if (head.parts.empty()) return {};
    if (!IsPlain(head.matrix.form)) return InvalidArgument("a quantised head cannot be cut");
    KeepRows(head, share_.head_vocab(config_));
    return {};
  }

 private:
  // Plain: DraftSource takes no others.
  void SliceHeads(PlannedLayer& layer) const {
    const int64_t d = config_.draft->head_width, keys = share_.key_heads(config_);
    const IndexRange q = {heads_.begin * d, heads_.end * d};
    const IndexRange kv = {share_.place.tensor * keys * d, (share_.place.tensor + 1) * keys * d};
    layer.qkv_a.matrix.n = 0;
    const IndexRange ranges[] = {q, kv, kv};
    for (size_t i = 0; i < std::size(ranges); ++i) {
      MatrixPart& part = layer.qkv_a.parts[0][i];
      part.row += ranges[i].begin;
      part.rows = ranges[i].size();
      layer.qkv_a.matrix.n += part.rows;
    }
    KeepColumns(layer.o, q);
  }

  Status SliceAttention(PlannedLayer& layer) {
    if (config_.has_heads()) {
      const IndexRange columns = {heads_.begin * config_.value, heads_.end * config_.value};
      BT_RETURN_IF_ERROR(CheckHeads(layer.o, columns, "o_proj"));
      SliceHeads(layer);
      return {};
    }
    const int64_t q = config_.head_dim(), kv = config_.nope + config_.value, v = config_.value;
    const IndexRange q_rows = {heads_.begin * q, heads_.end * q};
    const IndexRange columns = {heads_.begin * v, heads_.end * v};
    BT_RETURN_IF_ERROR(CheckHeads(layer.q, q_rows, "the query projection"));
    BT_RETURN_IF_ERROR(CheckHeads(layer.o, columns, "o_proj"));
    KeepRows(layer.q, q_rows);
    KeepColumns(layer.o, columns);
    const IndexRange group = share_.group_heads(config_);
    KeepRows(layer.kv_b, {group.begin * kv, group.end * kv});
    std::vector<int64_t> heads(static_cast<size_t>(group.size()));
    std::iota(heads.begin(), heads.end(), group.begin);
    if (!layer.uk_t.parts.empty()) KeepMatrices(layer.uk_t, heads);
    return {};
  }

  // Heads are cut evenly, wherever that is in the matrix. `range` is this rank's; all are checked.
  Status CheckHeads(const PlannedMatrix& matrix, const IndexRange& range, const char* what) const {
    const WeightForm form = matrix.matrix.form;
    const int64_t block = BlockOf(form);
    // A block may be short at its end, a group may not.
    const bool whole = form != WeightForm::kInt4Group || range.size() % block == 0;
    for (int64_t rank = 0; rank < share_.layout.tensor && block > 1; ++rank) {
      const IndexRange cut = {rank * range.size(), (rank + 1) * range.size()};
      if (whole && FallsOnBlocks(cut, block)) continue;
      return InvalidArgument(fmt::format(
          "{}: --tensor-parallel-size {} would cut a block of {} ({}) at {}: use a smaller size",
          what, share_.layout.tensor, block, WeightFormName(form), cut.begin));
    }
    return {};
  }

  Status SliceMlp(PlannedMlp& mlp, int32_t ranks, int32_t rank) const {
    if (mlp.down.parts.empty()) return {};
    const int64_t block = std::max(BlockOf(mlp.gate_up.matrix.form), BlockOf(mlp.down.matrix.form));
    BT_ASSIGN_OR_RETURN(const IndexRange share,
                        BlockShare(mlp.down.matrix.k, block, std::min(block, kPackRows), ranks,
                                   rank, mlp.down.parts[0][0].tensor.name));
    KeepRows(mlp.gate_up, share);
    KeepColumns(mlp.down, share);
    return {};
  }

  const K2Config& config_;
  const RankShare& share_;
  const IndexRange heads_;
};

}  // namespace

IndexRange RankShare::layers(const K2Config& config) const {
  return StageLayers(layout, config.layers, place.stage);
}

IndexRange RankShare::heads(const K2Config& config) const {
  return EvenShare(config.heads, layout.tensor, place.tensor);
}

IndexRange RankShare::group_heads(const K2Config& config) const {
  return EvenShare(config.heads, layout.tensor / layout.decode_context,
                   place.tensor / layout.decode_context);
}

IndexRange RankShare::vocab(const K2Config& config) const {
  return EvenShare(config.vocab, layout.tensor, place.tensor);
}

IndexRange RankShare::head_vocab(const K2Config& config) const {
  return EvenShare(config.head_vocab(), layout.tensor, place.tensor);
}

int32_t RankShare::key_heads(const K2Config& config) const {
  return config.draft ? config.draft->key_heads / layout.tensor : 0;
}

CacheWidths RankShare::cache_widths(const K2Config& config) const {
  const int64_t parts = config.has_heads() ? layout.tensor : 1;
  return {.latent = config.kv_lora / parts, .rope = config.rope_dim / parts};
}

std::vector<int32_t> RankShare::expert_slots(const K2Config& config) const {
  const ExpertShare held = ExpertsOf(layout, config.experts, place.expert(layout));
  const int64_t numbers = config.experts + layout.redundant_experts;
  std::vector<int32_t> slots(static_cast<size_t>(numbers), -1);
  for (int64_t slot = 0; slot < held.count; ++slot) {
    const int64_t number = layout.balanced_experts ? place.expert(layout) * held.count + slot
                                                   : held.first + slot * held.step;
    slots[static_cast<size_t>(number)] = static_cast<int32_t>(slot);
  }
  return slots;
}

std::vector<int32_t> RankShare::held_experts(const K2Config& config) const {
  const ExpertShare held = ExpertsOf(layout, config.experts, place.expert(layout));
  std::vector<int32_t> experts;
  for (int64_t slot = 0; slot < held.count; ++slot) {
    experts.push_back(static_cast<int32_t>((held.first + slot * held.step) % config.experts));
  }
  return experts;
}

LayoutShape ShapeOf(const K2Config& config) {
  return {.heads = config.heads,
          .key_heads = config.draft ? config.draft->key_heads : 0,
          .layers = config.layers,
          .experts = config.experts,
          .vocab = config.head_vocab(),
          .intermediate = config.intermediate,
          .moe_intermediate = config.moe_intermediate};
}

Result<WeightPlan> SliceWeights(const K2Config& config, WeightPlan whole, const RankShare& share) {
  BT_RETURN_IF_ERROR(CheckLayout(share.layout, ShapeOf(config)));
  WeightPlan plan = std::move(whole);
  if (share.layout.balanced_experts) {
    plan.staged_experts =
        ExpertsOnTheirWay(BalanceShapeOf(share.layout, static_cast<int32_t>(config.experts)));
  }
  const IndexRange layers = share.layers(config);
  plan.layers.erase(plan.layers.begin() + layers.end, plan.layers.end());
  plan.layers.erase(plan.layers.begin(), plan.layers.begin() + layers.begin);
  plan.first_layer = static_cast<int32_t>(layers.begin);
  if (!share.first_stage()) plan.embedding = {};
  if (!share.last_stage()) {
    plan.final_norm = {};
    plan.lm_head = {};
  }
  Slicer slicer(config, share);
  BT_RETURN_IF_ERROR(slicer.SliceVocabulary(plan.embedding, plan.lm_head));
  for (PlannedLayer& layer : plan.layers) BT_RETURN_IF_ERROR(slicer.Slice(layer));
  return plan;
}

}  // namespace baltoro
