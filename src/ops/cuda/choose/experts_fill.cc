// The parameters of a way of an expert bank that has been chosen.

#include <algorithm>

#include "ops/cuda/choose/experts_down_sum.h"
#include "ops/cuda/choose/experts_ways.h"

namespace baltoro::cuda {

ExpertsSort ChooseExpertsSort(int64_t entries, int64_t slots) {
  ExpertsSort sort;
  sort.blocks = entries <= kSortAlone ? 1 : kSortBlocks;
  const int64_t share = (entries + sort.blocks - 1) / sort.blocks;
  // Entries stay in registers where they have room.
  const int32_t threads = share <= kSortEach * kSortThreads ? kSortThreads : kSortThreadsMax;
  sort.threads = std::max(threads, static_cast<int32_t>((slots + 31) / 32 * 32));
  return sort;
}

namespace experts_ways {
namespace {

// Blocks of the products, as the tables of the routing have room for.
int32_t StreamingBlocks(const Card& card) {
  return std::min(card.multiprocessors * kStreamingBlocks, kMaxBlocks);
}
int32_t Teams(const Card& card) {
  return std::min(std::max(1, card.multiprocessors / kGroupedTeam), kMaxBlocks);
}

// Three warps alone keep up with few tokens.
int32_t Helped(int64_t tokens, int32_t blocks) {
  return static_cast<int32_t>(std::clamp<int64_t>(tokens / blocks - 9, 0, 2 * grouped_sum::kWarps));
}

ExpertsSum Int4Sum(const ExpertsQuestion& q, int32_t tokens) {
  const int64_t entries = int64_t{tokens} * q.top_k;
  ExpertsSum sum;
  sum.tokens = tokens;
  sum.blocks = q.card.multiprocessors;
  // Measured, docs/kernels/moe.md.
  sum.tile_rows = entries > 29 * q.slots() ? kGroupedTileRows : kMiddlingTileRows;
  sum.units = grouped_sum::LeastUnits(q.slots(), entries, sum.blocks);
  // Whole experts are less even.
  const int32_t wanted = std::min<int32_t>(int4_sum::kMaxUnits, sum.units * 6 / 5 + 2);
  while (sum.units < wanted &&
         int4_sum::SharedBytes(sum.units + 1, int4_sum::kMinDepth) <= int4_sum::kSharedLimit) {
    ++sum.units;
  }
  sum.depth = int4_sum::kMaxDepth;
  while (sum.depth > int4_sum::kMinDepth &&
         int4_sum::SharedBytes(sum.units, sum.depth) > int4_sum::kSharedLimit) {
    --sum.depth;
  }
  sum.buffers = grouped_sum::Buffers(entries, static_cast<int32_t>(q.hidden() / kSumColumns));
  sum.helped = Helped(tokens, sum.blocks);
  sum.shared_bytes = int4_sum::SharedBytes(sum.units, sum.depth) + int4_sum::kBlockBytes;
  sum.sort = ChooseExpertsSort(entries, q.slots());
  return sum;
}

ExpertsSum Fp8Sum(const ExpertsQuestion& q) {
  const int64_t entries = q.entries();
  ExpertsSum sum;
  sum.tokens = static_cast<int32_t>(q.tokens());
  sum.tile_rows = kFp8TilesRows;
  sum.blocks = std::min(q.card.multiprocessors, kMaxBlocks);
  const int32_t units = grouped_sum::LeastUnits(q.slots(), entries, sum.blocks);
  // Whole experts are less even.
  sum.units = std::min<int32_t>(fp8_sum::kMaxUnits, units * 8 / 7 + 1);
  sum.depth = fp8_sum::kMinDepth;
  sum.add_slots = grouped_sum::kMinSlots;
  const auto end = [&](int32_t depth, int32_t add_slots) {
    return fp8_sum::PlacesOf(sum.units, depth, add_slots, q.top_k).end;
  };
  const auto fits = [&](int32_t depth, int32_t add_slots) {
    return end(depth, add_slots) <= fp8_sum::kSharedLimit;
  };
  while (sum.add_slots < 3 && fits(sum.depth, sum.add_slots + 1)) ++sum.add_slots;
  while (sum.depth < fp8_sum::kMaxDepth && fits(sum.depth + 1, sum.add_slots)) ++sum.depth;
  while (sum.add_slots < grouped_sum::kMaxSlots && fits(sum.depth, sum.add_slots + 1)) {
    ++sum.add_slots;
  }
  sum.buffers = grouped_sum::Buffers(entries, static_cast<int32_t>(q.down.n / kSumColumns));
  sum.helped = Helped(q.tokens(), sum.blocks);
  sum.shared_bytes = end(sum.depth, sum.add_slots) + 1024;
  sum.sort = ChooseExpertsSort(entries, q.slots());
  return sum;
}

// More tokens than are taken at once go in equal parts one after the other.
void FillInt4Parts(const ExpertsQuestion& q, ExpertsPlan& plan) {
  const int64_t most = Int4SumTokens(q), tokens = q.tokens();
  if (most == 0) return;
  const int64_t parts = (tokens + most - 1) / most, each = (tokens + parts - 1) / parts;
  plan.parts = static_cast<int32_t>((tokens + each - 1) / each);
  plan.part = Int4Sum(q, static_cast<int32_t>(each));
  plan.last_part = Int4Sum(q, static_cast<int32_t>(tokens - (plan.parts - 1) * each));
}

}  // namespace

int32_t GroupedTileRows(const ExpertsQuestion& q) {
  if (q.entries() <= 3 * q.slots()) return 8;
  if (q.entries() <= 8 * q.slots()) return 16;
  return q.entries() <= 16 * q.slots() ? 32 : kProductRowsMax;
}

bool GroupedWide(const ExpertsQuestion& q) {
  const auto takes = [](const MatrixFacts& w) {
    if (w.n % 8 != 0) return false;
    switch (w.form) {
      case WeightForm::kBf16:
        return w.k % 64 == 0;
      case WeightForm::kFp8Block:
        return w.quantise_input;
      case WeightForm::kInt8:
      case WeightForm::kInt8Static:
        return true;
      default:
        return false;
    }
  };
  return takes(q.gate_up) && takes(q.down);
}

void Fill(const ExpertsQuestion& q, ExpertsPlan& plan) {
  const bool prepared = plan.chooser == ExpertsChooser::kPreparation;
  if (prepared) {
    // The tables of a way with the sum take a thread for each block of its kernel.
    const bool few = q.tokens() <= kPrepareRanks * kPrepareFewWarps &&
                     plan.kernel != ExpertsKernel::kFp8GroupedSum;
    plan.prepare_warps = few ? kPrepareFewWarps : kPrepareManyWarps;
  }
  if (plan.shared == SharedExperts::kBeside) plan.beside_rows = BesideRows(q.tokens());
  switch (plan.kernel) {
    case ExpertsKernel::kNone:
    case ExpertsKernel::kInt4OneToken:
      break;
    case ExpertsKernel::kInt4OneLaunch1:
    case ExpertsKernel::kInt4OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch1:
    case ExpertsKernel::kFp8OneLaunch4:
    case ExpertsKernel::kFp8OneLaunch8:
      plan.blocks = kOneLaunchBlocks;
      break;
    case ExpertsKernel::kFp8Entries4:
      plan.end_strips = Fp8EndStrips(q.tokens(), q.down.n, q.down.k);
      break;
    case ExpertsKernel::kInt4Entries:
      plan.blocks = StreamingBlocks(q.card);
      break;
    case ExpertsKernel::kInt4Digits:
      plan.blocks = StreamingBlocks(q.card);
      plan.tile_rows = kDigitTileRows;
      plan.together = q.tokens() <= kDigitFewTokens ? kDigitFewTogether : kDigitTogether;
      break;
    case ExpertsKernel::kInt4Streaming:
      plan.blocks = StreamingBlocks(q.card);
      plan.tile_rows = kStreamingTileRows;
      break;
    case ExpertsKernel::kInt4GroupedSum:
      plan.blocks = Teams(q.card);
      FillInt4Parts(q, plan);
      plan.tile_rows = plan.part.tile_rows;
      break;
    case ExpertsKernel::kInt4Grouped:
      plan.blocks = Teams(q.card);
      plan.tile_rows = kGroupedTileRows;
      break;
    case ExpertsKernel::kFp8Streaming:
      plan.blocks = StreamingBlocks(q.card);
      plan.rounded_by_down = Fp8RoundedByDown(q);
      plan.tile_rows = plan.rounded_by_down ? kFp8RoundedRows : kFp8StreamRows;
      break;
    case ExpertsKernel::kFp8GroupedSum:
      plan.tile_rows = kFp8TilesRows;
      plan.parts = Fp8SumTokens(q) > 0 ? 1 : 0;
      plan.part = plan.last_part = Fp8Sum(q);
      break;
    case ExpertsKernel::kFp8Grouped128:
      plan.tile_rows = kFp8TilesRows;
      break;
    case ExpertsKernel::kGroupedProducts:
      plan.tile_rows = GroupedTileRows(q);
      plan.wide = plan.tile_rows == kProductRowsMax && GroupedWide(q);
      if (plan.wide) plan.tile_rows = kWideProductRows;
      break;
  }
  plan.reads_ordered =
      plan.kernel == ExpertsKernel::kInt4Grouped || plan.kernel == ExpertsKernel::kInt4GroupedSum;
  plan.makes_ordered = plan.reads_ordered && !q.x_ordered;
  // With the sum each part sorts its own.
  if (IsSorted(plan.kernel) && !prepared && plan.parts == 0)
    plan.sort = ChooseExpertsSort(q.entries(), q.slots());
}

}  // namespace experts_ways
}  // namespace baltoro::cuda
