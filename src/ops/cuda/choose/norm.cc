#include "ops/cuda/choose/norm.h"

#include <algorithm>

#include "ops/cuda/choose/launch_shape.h"
#include "ops/cuda/rows/row_sizes.h"

namespace baltoro::cuda {
namespace {

int64_t EightsOf(int64_t width) {
  return SharesOf(width, kEight);
}

int32_t WholeWarps(int64_t threads) {
  return static_cast<int32_t>(SharesOf(threads, 32) * 32);
}

bool InVectors(const NormQuestion& q) {
  return q.x.aligned(16) && q.out.aligned(16) && q.weight_alignment % 16 == 0 &&
         (!q.part || q.part->aligned(16));
}

// With a sum, rows in bf16: what follows is of these alone.
bool SumsToBf16(const NormQuestion& q) {
  return q.part && q.out.type == DType::kBf16;
}

// Copies are made by threads that hold eight columns each; codes need whole scales in each block of
// the largest cluster.
NormCopy CopyOf(const NormQuestion& q) {
  const int64_t width = q.x.width;
  const bool fits = SumsToBf16(q) && InVectors(q) && EightsOf(width) <= kNormThreadsMax;
  return ChooseNormCopy(q, fits && width % (kNormSpreadMost * kCodeBlock) == 0,
                        fits && width % 32 == 0);
}

// Blocks of a row, as many as leave each multiprocessor about one, since one alone would take
// longest to load and store it; 0: it is not spread.
int64_t Spread(const NormQuestion& q, NormCopy copy) {
  constexpr int64_t kWidthMin = 4096;
  const int64_t width = q.x.width;
  if (q.part->type == DType::kBf16 || !InVectors(q) || width < kWidthMin ||
      width > kNormThreadsMax * kEight) {
    return 0;
  }
  const int64_t rows = q.x.rows;
  const int64_t blocks = rows <= 16   ? kNormSpreadMost
                         : rows <= 32 ? kNormSpreadWhole
                         : rows <= 64 ? 2
                                      : 0;
  if (blocks == 0) return 0;
  const int64_t columns = blocks > kNormSpreadWhole ? kEight : 32 * kEight;
  if (width % (blocks * columns) != 0) return 0;
  return copy != NormCopy::kMatrixOrder || width % (blocks * 32) == 0 ? blocks : 0;
}

// The warps of a row, and the one that copies.
int32_t StreamThreads(const NormQuestion& q) {
  return WholeWarps(EightsOf(q.x.width)) + 32;
}

int32_t StageBytes(const NormQuestion& q) {
  return static_cast<int32_t>(q.x.width) * static_cast<int32_t>(4 + SizeOf(q.part->type));
}

bool Streams(const NormQuestion& q) {
  constexpr int64_t kRowsMin = 257, kWidthMin = 4096;
  constexpr int32_t kStagesMin = 3;
  return q.x.rows >= kRowsMin && InVectors(q) && q.x.width % kEight == 0 &&
         q.x.width >= kWidthMin && StreamThreads(q) <= kNormThreadsMax &&
         kNormRingBytes / StageBytes(q) >= kStagesMin;
}

NormPlan StreamPlan(const NormQuestion& q, NormCopy copy) {
  NormPlan plan{.kernel = NormWay::kRowsStreaming,
                .copy = copy,
                .vectors = true,
                .blocks = std::min<int64_t>(q.x.rows, q.card.multiprocessors),
                .threads = StreamThreads(q),
                .why = "many wide rows: copies of the next ones keep the memory busy"};
  const int64_t turns = SharesOf(q.x.rows, plan.blocks);
  plan.stages = static_cast<int32_t>(
      std::min<int64_t>({turns, kNormStagesMax, kNormRingBytes / StageBytes(q)}));
  plan.shared_bytes = plan.stages * StageBytes(q);
  return plan;
}

NormPlan SpreadPlan(const NormQuestion& q, NormCopy copy, int64_t spread) {
  return {.kernel = spread == 2   ? NormWay::kRowCluster2
                    : spread == 4 ? NormWay::kRowCluster4
                                  : NormWay::kRowCluster8,
          .copy = copy,
          .vectors = true,
          .blocks = q.x.rows * spread,
          .threads = WholeWarps(q.x.width / spread / kEight),
          .why = "few wide rows: a block on each multiprocessor"};
}

const char* NameOf(NormWay kernel) {
  switch (kernel) {
    case NormWay::kRowEights1:
      return "row_eights1";
    case NormWay::kRowEights4:
      return "row_eights4";
    case NormWay::kRowCluster2:
      return "row_cluster2";
    case NormWay::kRowCluster4:
      return "row_cluster4";
    case NormWay::kRowCluster8:
      return "row_cluster8";
    case NormWay::kRowsStreaming:
      return "rows_streaming";
  }
  return "";
}

std::string Threads(int32_t threads) {
  return ", " + std::to_string(threads) + " threads";
}

}  // namespace

NormCopy ChooseNormCopy(const NormQuestion& q, bool codes, bool order) {
  if (q.out.type != DType::kBf16) return NormCopy::kNone;
  if (q.codes_wanted && codes && q.out.width % kCodeBlock == 0) return NormCopy::kCodes;
  if (q.order_wanted && order && q.out.width % 32 == 0) return NormCopy::kMatrixOrder;
  return NormCopy::kNone;
}

NormPlan ChooseNorm(const NormQuestion& q) {
  const NormCopy copy = CopyOf(q);
  if (SumsToBf16(q)) {
    if (Streams(q)) return StreamPlan(q, copy);
    if (const int64_t spread = Spread(q, copy); spread > 0) return SpreadPlan(q, copy, spread);
  }
  const int64_t eights = EightsOf(q.x.width);
  const bool wide = eights > kNormThreadsMax;
  return {.kernel = wide ? NormWay::kRowEights4 : NormWay::kRowEights1,
          .copy = copy,
          .vectors = InVectors(q),
          .blocks = q.x.rows,
          .threads = WholeWarps(wide ? SharesOf(eights, kNormWideEights) : eights),
          .why = wide ? "a row wider than a block has eights of threads" : "a block a row"};
}

SwigluPlan ChooseSwiglu(const SwigluQuestion& q) {
  const int64_t width = q.x.width / 2;
  SwigluPlan plan;
  if (q.reader) {
    if (q.reader->form != WeightForm::kFp8Block || !q.reader->quantise_input ||
        q.reader->k % kCodeBlock != 0 || width != q.reader->k || q.x.type != DType::kBf16 ||
        !q.x.aligned(16)) {
      plan.why = "the product does not read codes, or not of such rows";
      return plan;
    }
    plan.kernel = SwigluWay::kCodes;
    plan.vectors = true;
    plan.why = "the product reads codes";
  } else {
    plan.kernel = SwigluWay::kRows;
    plan.vectors = q.x.aligned(16) && q.out.aligned(16) && width * SizeOf(q.x.type) % 16 == 0;
    plan.why = "eight elements a thread";
  }
  // Of few rows on as many multiprocessors as there are warps.
  const int64_t count = q.x.rows * EightsOf(width);
  const bool few = count <= int64_t{kSwigluThreadsFew} * q.card.multiprocessors;
  plan.threads = few ? kSwigluThreadsFew : kSwigluThreads;
  plan.blocks = SharesOf(count, plan.threads);
  return plan;
}

RoutePlan ChooseRoute(const RouteQuestion& q) {
  constexpr int64_t kOneEachBelow = 512;  // few tokens: a multiprocessor each
  const RouterParams& params = q.params;
  if (params.score == RouterScore::kSigmoid && params.groups == 1 &&
      params.experts <= kWarpExpertsMax) {
    const int32_t warps = q.rows < kOneEachBelow ? 1 : kRouteWarpsMax;
    return {.kernel = RouteWay::kWarpEach,
            .blocks = SharesOf(q.rows, warps),
            .threads = 32 * warps,
            .why = "sigmoid scores without groups: no barriers"};
  }
  return {.kernel = RouteWay::kBlockEach,
          .blocks = q.rows,
          .threads = WholeWarps(params.experts),
          .why = "groups, other scores or very many experts"};
}

std::string Text(const NormPlan& plan) {
  std::string text = NameOf(plan.kernel) + Threads(plan.threads);
  if (plan.stages > 0) text += ", " + std::to_string(plan.stages) + " stages";
  if (plan.copy == NormCopy::kCodes) text += " + codes";
  if (plan.copy == NormCopy::kMatrixOrder) text += " + matrix order";
  return plan.vectors ? text : text + ", element by element";
}

std::string Text(const SwigluPlan& plan) {
  if (plan.kernel == SwigluWay::kNone) return "none";
  return (plan.kernel == SwigluWay::kCodes ? "codes" : "rows") + Threads(plan.threads) +
         (plan.vectors ? "" : ", element by element");
}

std::string Text(const RoutePlan& plan) {
  return (plan.kernel == RouteWay::kWarpEach ? "warp_each" : "block_each") + Threads(plan.threads);
}

}  // namespace baltoro::cuda
