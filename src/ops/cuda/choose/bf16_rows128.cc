#include "ops/cuda/choose/bf16_rows128.h"

#include <bit>
#include <cstddef>

namespace baltoro::cuda {
namespace {

constexpr int64_t kStep = kBf16Rows128Step;
// Measured in a layer of a step, H200 (docs/measured/cuda-linear.md): of more rows than these
// cuBLASLt is faster, by 5 us for the queries of 96.
constexpr int64_t kRowsMax = 64;
constexpr int64_t kPairRowsMax = 128;
// cuBLASLt reads the vocabulary at 83 % of the bandwidth.
constexpr int64_t kWeightBytesMax = int64_t{80} << 20;

// Of a block, without its barriers: of one that shares its multiprocessor with another of this
// kernel; of one that has it but for small blocks of the next kernel. From kManyRows rows of x on
// larger rings gain more than room for those.
constexpr int64_t kHalf = int64_t{108} << 10, kWhole = kBf16Rows128Whole;
constexpr int64_t kWholeOfMany = int64_t{200} << 10, kManyRows = 33;
// For the sums of more rows of x three warpgroups have too few registers.
constexpr int kTallTile = 64;
// Of weights that a block asks for at once, at first: twice what comes in while the memory answers.
constexpr int kEarlyBytes = 72 << 10;

int64_t Clusters(const Bf16Rows128Shape& shape, const Bf16Rows128Plan& plan) {
  const int64_t tiles = SharesOf(shape.rows, plan.tile);
  return tiles * (plan.Strips(shape.n) + (shape.second_n > 0 ? plan.Strips(shape.second_n) : 0));
}

int64_t StepsOfBlock(const Bf16Rows128Shape& shape, const Bf16Rows128Plan& plan) {
  return SharesOf(SharesOf(shape.k, kStep), plan.split);
}

// Clusters that run at once where each block has a multiprocessor almost for itself.
int64_t RoomOf(const Bf16Rows128Plan& plan, const Card& card) {
  if (plan.split == 1) return card.multiprocessors;
  const auto at = [](int of) { return static_cast<size_t>(of); };
  const int32_t room =
      card.clusters.bf16_rows128[at(plan.groups - 1)][at(std::countr_zero(at(plan.split)) - 1)]
                                [at(std::countr_zero(at(plan.tile)) - 5)];
  return std::max(1, room);
}

// Strips as tall as it takes for all clusters of eight to run at once, each block with a
// multiprocessor almost for itself: of [2112, 7168] 8 or 9 of a block's 14 steps of weights are
// asked for early, where of strips of 128 rows only 16 clusters of 17 run at once. groups 0: not.
Bf16Rows128Plan TallPlan(const Bf16Rows128Shape& shape, int tile, const Card& card) {
  Bf16Rows128Plan plan = {
      .groups = kBf16Rows128GroupsMax, .tile = tile, .split = kBf16Rows128SplitMax};
  if (tile > kTallTile || shape.rotates || shape.second_n > 0) return {};
  const int64_t room =
      std::min<int64_t>(RoomOf(plan, card), card.multiprocessors / int64_t{plan.split});
  plan.strip_rows = static_cast<int>((shape.n + room - 1) / room + 1) / 2 * 2;
  if (plan.strip_rows > plan.groups * kBf16Rows128GroupRows) return {};
  return plan;
}

bool Suits(int64_t rows, int64_t max) {
  return rows >= kBf16Rows128Min && rows <= max;
}

bool TakesRows(const RowsFacts& x) {
  return x.type == DType::kBf16 && x.rows >= 1 && x.aligned(16);
}

bool TakesMatrix(const MatrixFacts& w, const RowsFacts& out) {
  return w.form == WeightForm::kBf16 && w.count == 1 && w.n > 0 && w.n % 2 == 0 && w.k % 8 == 0 &&
         w.k >= kStep && w.n * w.k * 2 <= kWeightBytesMax && w.aligned(16) &&
         out.aligned(2 * SizeOf(out.type));
}

}  // namespace

Bf16Rows128Places::Bf16Rows128Places(const Bf16Rows128Plan& plan, int64_t rows)
    : stage_bytes(Bf16Rows128StageBytes(plan.StripRows())),
      input_bytes(Bf16Rows128StageBytes(plan.InputRows(rows))) {
  early = std::clamp(kEarlyBytes / stage_bytes, 1, plan.stages);
  const int inputs_at = plan.stages * stage_bytes, rings = inputs_at + plan.inputs * input_bytes;
  const int sums = plan.split > 1 ? Bf16Rows128SumsBytes(plan.groups, plan.tile) : 0;
  barriers_at = std::max(rings, sums);
  shared = std::max(
      {barriers_at + 8 * (2 * plan.stages + plan.inputs + 1),
       inputs_at - stage_bytes + Bf16Rows128StageBytes(plan.groups * kBf16Rows128GroupRows),
       rings - input_bytes + Bf16Rows128StageBytes(plan.tile)});
}

Bf16Rows128Plan PlanBf16Rows128(const Bf16Rows128Shape& shape, const Card& card) {
  const int tile = shape.rows <= 32 ? 32 : shape.rows <= 64 ? 64 : 128;
  if (shape.rotates && tile > kRowsMax) return {};
  const int64_t steps = SharesOf(shape.k, kStep), multiprocessors = card.multiprocessors;
  // Bytes that a multiprocessor reads, and what a meeting of blocks costs in them; blocks whose
  // weights would all be there early if there were room for these blocks beside others.
  constexpr int64_t kMeeting = 48 << 10, kLate = 64 << 10, kBeside = 170 << 10;
  Bf16Rows128Plan best;
  int64_t least = INT64_MAX, best_blocks = 0;
  bool best_fits = false;
  for (const int groups : {1, 2}) {
    for (int split = 1; split <= kBf16Rows128SplitMax; split *= 2) {
      if (split > steps || (shape.rotates && tile / 4 / split > kBf16Rows128Angles)) continue;
      const Bf16Rows128Plan plan = {.groups = groups, .tile = tile, .split = split};
      const int64_t each = StepsOfBlock(shape, plan);
      const int64_t blocks = Clusters(shape, plan) * split;
      const int64_t bytes = (groups * kBf16Rows128GroupRows + tile) * each * kStep * 2;
      const int64_t shared = each * (Bf16Rows128StageBytes(plan.StripRows()) +
                                     Bf16Rows128StageBytes(plan.InputRows(shape.rows)));
      const bool late = blocks > multiprocessors && shared <= kHalf &&
                        SharesOf(blocks, multiprocessors) * shared > kBeside;
      const int64_t cost = std::max<int64_t>(blocks, multiprocessors) * bytes / multiprocessors +
                           (split > 1 ? kMeeting : 0) + (late ? kLate : 0);
      if (cost >= least) continue;
      least = cost;
      best = plan;
      best_blocks = blocks;
      best_fits = shared <= kHalf;
    }
  }
  if (best.groups == 0) return {};
  if (best_blocks > multiprocessors && !best_fits) {
    const Bf16Rows128Plan tall = TallPlan(shape, tile, card);
    if (tall.groups > 0) best = tall;
  }
  FitBf16Rows128Rings(shape, card, best);
  return best;
}

// In clocks of a multiprocessor, for what comes after the wait for the kernel ahead: the weights
// that did not fit, at the rate of the memory, or the rounds of x, whichever takes longer.
void FitBf16Rows128Rings(const Bf16Rows128Shape& shape, const Card& card, Bf16Rows128Plan& plan) {
  constexpr int64_t kBytesOfClock = 19;
  // A round's copies are done behind weights that were asked for before them.
  const int64_t round = shape.rows <= kRowsMax ? 2000 : 1300;
  const int64_t steps = StepsOfBlock(shape, plan);
  const int64_t stage = Bf16Rows128StageBytes(plan.StripRows());
  const int64_t input = Bf16Rows128StageBytes(plan.InputRows(shape.rows));
  const bool alone = Clusters(shape, plan) <= RoomOf(plan, card);
  const int64_t whole = shape.rows < kManyRows ? kWhole : kWholeOfMany;
  const int64_t room = alone ? whole : kHalf;
  int64_t least = INT64_MAX;
  for (int64_t inputs = steps; inputs >= std::min<int64_t>(2, steps); --inputs) {
    const int64_t stages = std::min(steps, (room - inputs * input) / stage);
    if (stages < std::min<int64_t>(2, steps)) continue;
    const int64_t cost = std::max((steps - stages) * stage / kBytesOfClock, steps * round / inputs);
    if (cost >= least) continue;
    least = cost;
    plan.stages = static_cast<int>(stages);
    plan.inputs = static_cast<int>(inputs);
  }
}

LaunchShape LaunchShapeOf(const Bf16Rows128Plan& plan, const Bf16Rows128Shape& shape) {
  const int64_t strips = Clusters({.rows = 1, .n = shape.n, .second_n = shape.second_n}, plan);
  return {.x = static_cast<int32_t>(strips * plan.split),
          .y = static_cast<int32_t>(SharesOf(shape.rows, plan.tile)),
          .threads = 128 * plan.groups + 32,
          .shared = Bf16Rows128Places(plan, shape.rows).shared,
          .cluster = plan.split};
}

bool Bf16Rows128Can(const RowsFacts& x, const MatrixFacts& w, const RowsFacts& out) {
  return TakesRows(x) && TakesMatrix(w, out);
}

std::optional<Bf16Rows128Plan> PlanBf16Rows128(const RowsFacts& x,
                                               const MatrixFacts& w,
                                               const RowsFacts& out,
                                               const Card& card) {
  if (!Suits(x.rows, kRowsMax) || !Bf16Rows128Can(x, w, out)) return std::nullopt;
  return PlanBf16Rows128({.rows = x.rows, .k = w.k, .n = w.n}, card);
}

std::optional<Bf16Rows128Plan> PlanBf16Rows128(const RowsFacts& x,
                                               const MatrixFacts& w,
                                               const RowsFacts& out,
                                               const MatrixFacts& second,
                                               const RowsFacts& second_out,
                                               const Card& card) {
  if (!Suits(x.rows, kPairRowsMax) || !Bf16Rows128Can(x, w, out) ||
      !TakesMatrix(second, second_out) || w.k != second.k) {
    return std::nullopt;
  }
  return PlanBf16Rows128({.rows = x.rows, .k = w.k, .n = w.n, .second_n = second.n}, card);
}

std::optional<Bf16Rows128Plan> PlanBf16Rows128Queries(const RowsFacts& x,
                                                      const MatrixFacts& w,
                                                      const RowsFacts& out,
                                                      const Card& card) {
  if (!Suits(x.rows, kRowsMax) || !Bf16Rows128Can(x, w, out)) return std::nullopt;
  const Bf16Rows128Plan plan =
      PlanBf16Rows128({.rows = x.rows, .k = w.k, .n = w.n, .rotates = true}, card);
  if (plan.groups == 0) return std::nullopt;
  return plan;
}

}  // namespace baltoro::cuda
