#include "ops/cuda/choose/tiles.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda {
namespace {

using product::kWarps;

constexpr int32_t kClusterMax = 8;
// What a block costs beside its steps, in steps.
constexpr int64_t kBlockCost = 2;

// How the blocks share the work: strips beside one another, columns among warps and blocks.
struct Split {
  int32_t log_warps_k = 0, cluster = 1;
};

int64_t BlocksOf(int64_t strips, const Split& split) {
  return SharesOf(strips, kWarps >> split.log_warps_k) * split.cluster;
}

// The split whose busiest multiprocessor has the least to do; of equals that with the smallest
// cluster, then the most warps a strip.
Split ChooseSplit(const TilesMeasure& measure, int64_t tiles, bool one_matrix, const Card& card) {
  Split best;
  int64_t least = INT64_MAX;
  for (int32_t cluster = 1; cluster <= (one_matrix ? kClusterMax : 1); cluster *= 2) {
    for (int32_t log = 3; log >= 0; --log) {
      const int32_t parts = cluster << log;
      if (parts > measure.steps && parts > 1) continue;
      const int64_t blocks = BlocksOf(measure.strips, {log, cluster}) * tiles;
      const int64_t each = SharesOf(blocks, card.multiprocessors);
      const int64_t cost = each * (SharesOf(measure.steps, parts) + kBlockCost);
      if (cost >= least) continue;
      least = cost;
      best = {log, cluster};
    }
  }
  return best;
}

int32_t EightsOf(int64_t rows) {
  return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8;
}

int32_t SharedOf(const MatrixFacts& w, int32_t eights) {
  int ring = 0;
  if (w.form == WeightForm::kBf16) ring = product::RingOfBf16(eights);
  if (w.form == WeightForm::kFp8Block && w.quantise_input) ring = product::RingOfFp8Codes(eights);
  return ring * kWarps * product::kRingStepBytes;
}

}  // namespace

TilesMeasure::TilesMeasure(const MatrixFacts& w)
    : strips(w.form == WeightForm::kInt4Group ? Int4HalfRows(w.n) / 8 : SharesOf(w.n, 16)),
      steps(SharesOf(w.k, w.form == WeightForm::kBf16 ? 64 : 128)) {}

bool TilesCan(const MatrixFacts& w) {
  if (w.form == WeightForm::kF32) return false;
  return w.form != WeightForm::kBf16 || w.k % 8 == 0;
}

bool WideTilesCan(const MatrixFacts& w) {
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
}

TilesPlan ChooseTiles(const TilesQuestion& q, const Card& card) {
  BT_CHECK(TilesCan(q.w));
  const bool one = q.tile_rows == 0;
  TilesPlan plan = {.wide = q.wide};
  if (q.wide) {
    BT_CHECK(WideTilesCan(q.w) && (one || q.tile_rows == kWideProductRows));
    const int64_t tiles = one ? SharesOf(q.rows, kWideProductRows) : q.tiles_max;
    const int64_t units = tiles * SharesOf(q.w.n, product::kWideWeightRows);
    plan.launch = {.x = static_cast<int32_t>(std::min<int64_t>(units, card.multiprocessors)),
                   .threads = 384};
    return plan;
  }
  plan.eights = EightsOf(one ? q.rows : q.tile_rows);
  const int64_t tiles = one ? SharesOf(q.rows, 8 * plan.eights) : q.tiles_max;
  BT_CHECK(tiles <= 65535);
  const TilesMeasure measure(q.w);
  const Split split = ChooseSplit(measure, tiles, one, card);
  plan.log_warps_k = split.log_warps_k;
  plan.cluster = split.cluster;
  plan.launch = {.x = static_cast<int32_t>(BlocksOf(measure.strips, split)),
                 .y = static_cast<int32_t>(tiles),
                 .threads = product::kThreads,
                 .shared = SharedOf(q.w, plan.eights),
                 .cluster = split.cluster};
  return plan;
}

}  // namespace baltoro::cuda
