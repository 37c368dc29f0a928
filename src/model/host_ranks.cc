#include "model/host_ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/check.h"
#include "comm/link_communicator.h"

namespace baltoro {
namespace {

// A step of a large model takes minutes on a slow processor; who dies is noticed without this.
constexpr Seconds kCallTimeout = 600;

std::span<std::byte> BytesOf(const TensorView& x) {
  BT_CHECK(x.contiguous());
  return {static_cast<std::byte*>(x.data), static_cast<size_t>(x.num_elements() * SizeOf(x.dtype))};
}

std::span<float> FloatsOf(const TensorView& x) {
  BT_CHECK(x.contiguous() && x.dtype == DType::kF32);
  return {x.as<float>(), static_cast<size_t>(x.num_elements())};
}

// Places of the ranks that differ from `mine` in one coordinate alone.
template <typename Same>
Result<std::unique_ptr<Communicator>> JoinThose(Link* link,
                                                const ParallelLayout& layout,
                                                const char* name,
                                                const Same& same) {
  GroupOptions options{.name = name, .ranks = {}, .call_timeout = kCallTimeout};
  for (int32_t rank = 0; rank < layout.ranks(); ++rank) {
    if (same(PlaceOf(layout, rank))) options.ranks.push_back(rank);
  }
  return JoinGroup(link, options);
}

float AsFloat(const TensorView& x, int64_t row, int64_t column) {
  return x.dtype == DType::kF32 ? x.row<const float>(row)[column]
                                : ToFloat(x.row<const Bf16>(row)[column]);
}

}  // namespace

Result<std::unique_ptr<HostRanks>> HostRanks::Join(Link* link, const ParallelLayout& layout) {
  if (link->ranks() != layout.ranks()) {
    return InvalidArgument(
        fmt::format("the layout is for {} ranks, there are {}", layout.ranks(), link->ranks()));
  }
  const RankPlace mine = PlaceOf(layout, link->rank());
  auto ranks = std::make_unique<HostRanks>();
  const int32_t ways = layout.decode_context;
  BT_ASSIGN_OR_RETURN(ranks->tensor_, JoinThose(link, layout, "tp", [&](const RankPlace& place) {
                        return place.data == mine.data && place.stage == mine.stage;
                      }));
  BT_ASSIGN_OR_RETURN(ranks->context_, JoinThose(link, layout, "dcp", [&](const RankPlace& place) {
                        return place.data == mine.data && place.stage == mine.stage &&
                               place.tensor / ways == mine.tensor / ways;
                      }));
  BT_ASSIGN_OR_RETURN(ranks->pipeline_, JoinThose(link, layout, "pp", [&](const RankPlace& place) {
                        return place.data == mine.data && place.tensor == mine.tensor;
                      }));
  if (layout.balanced_experts) {
    BT_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> experts,
                        JoinThose(link, layout, "ep", [&](const RankPlace& place) {
                          return place.stage == mine.stage;
                        }));
    ranks->slabs_ =
        std::make_unique<HostSlabs>(std::move(experts), layout.data, /*counts=*/mine.tensor == 0);
  }
  if (layout.data == 1) return ranks;
  BT_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> peers,
                      JoinThose(link, layout, "dp", [&](const RankPlace& place) {
                        return place.stage == mine.stage && place.tensor == mine.tensor;
                      }));
  ranks->exchange_ = std::make_unique<HostExchange>(std::move(peers));
  return ranks;
}

void HostRanks::Sum(const OpContext&, TensorView x) {
  if (tensor_->size() == 1 || !status_.ok()) return;
  Note(tensor_->AllReduceSum(FloatsOf(x)));
}

void HostRanks::Gather(Communicator& group,
                       TensorView all,
                       TensorView own,
                       std::span<const int64_t> widths) {
  if (!status_.ok()) return;
  BT_CHECK(all.dtype == own.dtype && all.contiguous());
  BT_CHECK(std::ssize(widths) == group.size() && own.dim(1) == widths[group.rank()]);
  const int64_t rows = own.dim(0), size = SizeOf(own.dtype);
  scratch_.Reset();
  const std::span<std::byte> to = BytesOf(all);
  std::span<std::byte> parts(scratch_.AllocateArray<std::byte>(to.size()), to.size());
  std::vector<size_t> bytes;
  for (const int64_t width : widths) bytes.push_back(static_cast<size_t>(rows * width * size));
  Note(group.AllGather(BytesOf(own), bytes, parts));
  if (!status_.ok()) return;
  const std::byte* from = parts.data();
  int64_t column = 0;
  for (const int64_t width : widths) {
    const auto run = static_cast<size_t>(width * size);
    for (int64_t row = 0; row < rows; ++row, from += run) {
      std::memcpy(to.data() + (row * all.dim(1) + column) * size, from, run);
    }
    column += width;
  }
  BT_CHECK(column == all.dim(1));
}

void HostRanks::GatherColumns(const OpContext&,
                              TensorView all,
                              TensorView own,
                              std::span<const int64_t> widths) {
  Gather(*tensor_, all, own, widths);
}

void HostRanks::GatherHeads(const OpContext&, TensorView all, TensorView own) {
  const std::vector<int64_t> widths(static_cast<size_t>(context_->size()), own.dim(1));
  Gather(*context_, all, own, widths);
}

void HostRanks::MergeHeads(const OpContext&, TensorView own, TensorView partial, TensorView lse) {
  if (!status_.ok()) return;
  const int64_t ranks = context_->size(), rows = lse.dim(0), all_heads = lse.dim(1);
  const int64_t heads = all_heads / ranks, value = own.dim(1) / heads;
  BT_CHECK(own.dim(1) == heads * value && partial.dim(1) == ranks * own.dim(1));
  scratch_.Reset();
  const auto floats = [&](int64_t count) {
    const auto size = static_cast<size_t>(count);
    return std::span<float>(scratch_.AllocateArray<float>(size), size);
  };
  const std::span<float> sums = floats(ranks * rows * all_heads);  // [ranks, T, heads of all]
  const std::vector<size_t> bytes(static_cast<size_t>(ranks), FloatsOf(lse).size_bytes());
  Note(context_->AllGather(BytesOf(lse), bytes, std::as_writable_bytes(sums)));
  if (!status_.ok()) return;

  const std::span<float> weighted = floats(partial.num_elements());  // [ranks, T, h, V]
  float* to = weighted.data();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t head = rank * heads; head < (rank + 1) * heads; ++head) {
        const auto of = [&](int64_t r) { return sums[(r * rows + row) * all_heads + head]; };
        float highest = -std::numeric_limits<float>::infinity();
        for (int64_t r = 0; r < ranks; ++r) highest = std::max(highest, of(r));
        float total = 0, weight = 0;
        // Comparisons with a NaN are false: its row stays one.
        if (!(highest == -std::numeric_limits<float>::infinity())) {
          for (int64_t r = 0; r < ranks; ++r) total += std::exp(of(r) - highest);
          weight = std::exp(of(context_->rank()) - highest) / total;
        }
        for (int64_t v = 0; v < value; ++v) {
          const float x = AsFloat(partial, row, head * value + v);
          *to++ = weight == 0 ? 0 : weight * x;
        }
      }
    }
  }
  const std::span<float> merged = floats(own.num_elements());
  const std::vector<size_t> counts(static_cast<size_t>(ranks), merged.size());
  Note(context_->ReduceScatterSum(weighted, counts, merged));
  if (!status_.ok()) return;
  for (int64_t row = 0; row < rows; ++row) {
    const float* from = merged.data() + row * own.dim(1);
    if (own.dtype == DType::kF32) {
      std::copy_n(from, own.dim(1), own.row<float>(row));
    } else {
      std::transform(from, from + own.dim(1), own.row<Bf16>(row),
                     [](float x) { return ToBf16(x); });
    }
  }
}

void HostRanks::SendToNextStage(const OpContext&, TensorView x) {
  if (!status_.ok()) return;
  Note(pipeline_->Send(BytesOf(x), pipeline_->rank() + 1));
}

void HostRanks::ReceiveFromStageBefore(const OpContext&, TensorView x) {
  if (!status_.ok()) return;
  Note(pipeline_->Receive(BytesOf(x), pipeline_->rank() - 1));
}

}  // namespace baltoro
