#include "ops/cuda/choose/fp8_tiles.h"

#include "ops/cuda/choose/fp8_tiles_layout.h"

namespace baltoro::cuda {
namespace {

using fp8_pairs::kScaleSteps;
using fp8_pairs::kStepsOfHalves;
using fp8_tiles::kTileRows;
using fp8_tiles::kWeightRows;

// Rows from which fp8_pairs is the faster form: of one matrix, and of each of many on average.
constexpr int64_t kPairsRows = 65, kPairsTileRows = 64, kPairsGatedRows = 192;
// Rows of weights at most where there is one tile: a round of pieces of 64.
constexpr int64_t kOneTileMax = 64 * 66;
// Steps of a row from which one group of 128 rows of weights under way, which reads shared memory
// less, is faster than two of 64. Measured: at 2 steps it is not, at 16 it is.
constexpr int64_t kLongSteps = 8;

int64_t StepsOf(const MatrixFacts& w) {
  return SharesOf(w.k, 128);
}

bool TakesPairs(const Fp8TilesQuestion& q) {
  const MatrixFacts& w = q.w;
  const bool one = !q.grouped;
  const int64_t each = q.gated ? kPairsGatedRows : kPairsTileRows;
  if (q.rows < (one ? kPairsRows : each * w.count) || q.gather || w.k % 128 != 0) return false;
  // Of one tile the second block of a pair has nothing to do.
  if (one && q.rows <= kTileRows && w.n > kOneTileMax) return false;
  // The copy engine wants whole 16 bytes from one row of scales to the next.
  if (StepsOf(w) >= kScaleSteps && StepsOf(w) % 4 != 0) return false;
  return q.whole_x && w.n % 8 == 0 && w.aligned(16) && q.out.aligned(16) &&
         (!q.gated || w.n % 256 == 0);
}

// Rows of weights of a piece; whether two pairs of blocks have half of the columns each.
struct Piece {
  int64_t rows = 0;
  bool halves = false;
};

// Of one matrix: the piece with which the multiprocessors are busy for the shortest time, by
// nanoseconds of a step and of what a piece takes besides (docs/measured/cuda-fp8.md).
Piece ChoosePiece(int64_t tiles, int64_t n, int64_t steps, const Card& card) {
  struct Cost {
    int64_t rows, step, end;
  };
  constexpr Cost kWhole[] = {
      {256, 763, 1900}, {192, 639, 1100}, {144, 597, 680}, {128, 468, 970}, {64, 355, 400}};
  constexpr int64_t kEightsStep = 560;  // of 192 rows in whole eights
  // In halves: with the sums on their way from one block to another.
  constexpr Cost kHalves[] = {{144, 597, 1700}, {80, 400, 1500}};
  constexpr int64_t kClustersOfFour = 32;  // that run at once, on the multiprocessors as they lie
  Piece best;
  int64_t least = INT64_MAX;
  const auto consider = [&](const Cost& c, bool halves, int64_t cost) {
    if (cost >= least) return;
    least = cost;
    best = {c.rows, halves};
  };
  const auto pairs_of = [&](const Cost& c) { return (tiles + 1) / 2 * SharesOf(n, c.rows); };
  for (const Cost& c : kWhole) {
    const int64_t step = c.rows == 192 && steps % kScaleSteps == 0 ? kEightsStep : c.step;
    const int64_t rounds = SharesOf(pairs_of(c), card.multiprocessors / 2);
    consider(c, false, rounds * (steps * step + c.end));
  }
  if (steps < kStepsOfHalves) return best;
  for (const Cost& c : kHalves) {
    if (pairs_of(c) > kClustersOfFour) continue;
    const int64_t of_first = fp8_pairs::StepsOfFirstHalf(static_cast<int>(steps));
    consider(c, true, (steps - of_first) * c.step + c.end);
  }
  return best;
}

// Bytes of a block's shared memory.
template <int kN, int kG, int kDeep, bool kHalves = false>
constexpr int kSharedOf = fp8_pairs::Shape<false, kN, kG, kDeep, false, kHalves>::kShared;

int32_t SharedOf(const Fp8TilesPlan& plan) {
  switch (plan.piece) {
    case 64:
      return kSharedOf<64, 64, 2>;
    case 80:
      return kSharedOf<80, 80, 2, true>;
    case 128:
      return kSharedOf<128, 128, 2>;
    case 144:
      return plan.halves ? kSharedOf<144, 72, 2, true> : kSharedOf<144, 72, 2>;
    case 192:
      return kSharedOf<192, 96, 2>;
    default:
      return kSharedOf<256, 128, 1>;
  }
}
static_assert(fp8_pairs::Shape<true, 256, 128, 1>::kShared == kSharedOf<256, 128, 1>);
static_assert(fp8_pairs::Shape<false, 192, 192, 1, false, false, true>::kShared ==
              kSharedOf<192, 96, 2>);

Fp8TilesPlan PlanPairs(const Fp8TilesQuestion& q, const Card& card) {
  const bool one = !q.grouped;
  const int64_t steps = StepsOf(q.w), tiles = one ? SharesOf(q.rows, kTileRows) : q.tiles_max;
  Piece piece = {.rows = 256};
  if (one && !q.gated) piece = ChoosePiece(tiles, q.w.n, steps, card);
  Fp8TilesPlan plan = {.pairs = true, .pair = true, .halves = piece.halves};
  plan.piece = static_cast<int32_t>(piece.rows);
  plan.group = plan.piece == 144 ? 72 : plan.piece;
  if (plan.piece == 256) {
    plan.eights = (q.gated || !one) && steps % kScaleSteps == 0;
    plan.group = q.gated || plan.eights || steps >= kLongSteps ? 128 : 64;
  }
  if (plan.piece == 192) {
    plan.eights = steps % kScaleSteps == 0;
    plan.group = plan.eights ? 192 : 96;
  }
  const int64_t pairs = (tiles + 1) / 2 * SharesOf(q.w.n, piece.rows);
  const int64_t blocks =
      plan.halves ? 4 * pairs : std::min(2 * pairs, int64_t{card.multiprocessors});
  plan.launch = {.x = static_cast<int32_t>(blocks),
                 .threads = fp8_tiles::kThreads,
                 .shared = SharedOf(plan),
                 .cluster = plan.halves ? 4 : 2};
  return plan;
}

// How a product without tiles is cut: rows of a tile, parts of the columns.
struct Cut {
  int32_t tile_rows = kTileRows, parts = 1;
};

// The cut that should keep the multiprocessors busy for the shortest time; in what a step of one
// row takes (about 7 ns).
Cut ChooseCut(const Fp8TilesQuestion& q, const Card& card) {
  constexpr int64_t kStepCost = 24;    // of a step beside its rows
  constexpr int64_t kPieceCost = 400;  // of a piece beside its steps
  constexpr int64_t kSumCost = 350;    // of adding parts up, beside their bytes
  constexpr int64_t kSumBytes = 15000;
  const int64_t steps = StepsOf(q.w), strips = SharesOf(q.w.n, kWeightRows);
  const bool may_share = q.has_scratch && q.out.aligned(16) &&
                         q.out.row_bytes / SizeOf(q.out.type) % 8 == 0 && q.rows <= 65535;
  Cut best;
  int64_t least = INT64_MAX;
  for (const int32_t parts : {1, 2, 3, 4, 6, 8, 14}) {
    if (parts > 1 && (!may_share || steps < 2 * parts)) continue;
    for (const int32_t tile_rows : {128, 96, 64, 32}) {
      const int64_t units = SharesOf(q.rows, tile_rows) * strips * parts;
      const int64_t waves = SharesOf(units, card.multiprocessors);
      int64_t cost = waves * (SharesOf(steps, parts) * (tile_rows + kStepCost) + kPieceCost);
      if (parts > 1) cost += kSumCost + 2 * parts * q.rows * q.w.n * 4 / kSumBytes;
      if (cost >= least) continue;
      least = cost;
      best = {tile_rows, parts};
    }
  }
  return best;
}

}  // namespace

Fp8TilesPlan ChooseFp8Tiles(const Fp8TilesQuestion& q, const Card& card) {
  if (TakesPairs(q)) return PlanPairs(q, card);
  // Where most tiles have another of their matrix beside them.
  Fp8TilesPlan plan = {.pair = q.rows >= 192 * q.w.count};
  int64_t tiles = q.tiles_max;
  if (!q.grouped) {
    const Cut cut = ChooseCut(q, card);
    plan.tile_rows = cut.tile_rows;
    plan.parts = cut.parts;
    plan.pair = plan.pair && q.rows > cut.tile_rows;
    tiles = SharesOf(q.rows, cut.tile_rows);
  }
  const int64_t units = tiles * SharesOf(q.w.n, kWeightRows) * plan.parts;
  plan.launch = {
      .x = static_cast<int32_t>(std::min((units + 1) / 2 * 2, int64_t{card.multiprocessors})),
      .threads = fp8_tiles::kThreads,
      .shared = fp8_tiles::kSharedBytes,
      .cluster = plan.pair ? 2 : 1};
  return plan;
}

bool Fp8TilesSuit(int64_t rows, int64_t n, const Card& card) {
  const int64_t strips = SharesOf(n, kWeightRows);
  return rows > 64 || (rows > 32 && strips * 4 >= card.multiprocessors * 3 / 4);
}

bool Fp8PairsFill(int64_t rows, const MatrixFacts& w, const Card& card) {
  const int64_t pairs = SharesOf(rows, 2 * kTileRows) * SharesOf(w.n, 64);
  const int64_t halves = w.k / 128 >= kStepsOfHalves ? 2 : 1;
  return pairs * halves * 3 >= card.multiprocessors;
}

}  // namespace baltoro::cuda
