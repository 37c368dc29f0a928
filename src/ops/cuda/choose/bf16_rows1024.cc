#include "ops/cuda/choose/bf16_rows1024.h"

namespace baltoro::cuda {
namespace {

constexpr int64_t kStep = kBf16Rows1024Step, kTile = kBf16Rows1024Tile;
// Fewer rows are for bf16_rows128; of more cuBLASLt fills the card.
constexpr int64_t kQueryRowsMin = 65, kQueryRowsMax = 512;
constexpr int64_t kPairRowsMin = 129, kPairRowsMax = 1024;
constexpr int64_t kRouterRowsMin = 129, kRouterRowsMax = 512;  // of the router alone

bool TakesMatrix(const MatrixFacts& w, const RowsFacts& out) {
  return w.form == WeightForm::kBf16 && w.count == 1 && w.n > 0 && w.n % 4 == 0 && w.k % 8 == 0 &&
         w.k >= kStep && w.aligned(16) && out.aligned(4 * SizeOf(out.type));
}

}  // namespace

// The most blocks that run at once, with parts of 12 steps or more (queries: two parts); of plans
// with as many the one with narrow strips up to 256 rows, with wide ones above. These were the best
// of all that were measured, or close to it (docs/kernels/products.md).
Bf16Rows1024Plan PlanBf16Rows1024(const Bf16Rows1024Shape& shape) {
  // Clusters of 2, 4 or 8 leave a few of the multiprocessors of a group empty, larger numbers in
  // between more of them.
  constexpr int64_t kBlocks = 128, kStepsMin = 12;
  const bool narrow = shape.rows <= 2 * kTile;
  const int64_t steps = SharesOf(shape.k, kStep), tiles = SharesOf(shape.rows, kTile);
  Bf16Rows1024Plan best;
  int64_t most = 0;
  for (const int columns : {narrow ? 64 : 128, 96, narrow ? 128 : 64}) {
    Bf16Rows1024Plan plan = {.columns = columns, .parts = 1, .tiles = 1};
    if (columns == 128 && !narrow && tiles % 2 == 0) plan.tiles = 2;
    const int64_t alone = tiles * (SharesOf(shape.n, columns) + SharesOf(shape.second_n, columns));
    if (alone > kBlocks / 2) continue;
    while (2 * plan.parts * plan.tiles <= kBf16Rows1024ClusterMax &&
           2 * plan.parts * alone <= kBlocks && 2 * plan.parts * kStepsMin <= steps) {
      plan.parts *= 2;
    }
    if (plan.parts * alone <= most) continue;
    most = plan.parts * alone;
    best = plan;
  }
  return best;
}

LaunchShape LaunchShapeOf(const Bf16Rows1024Plan& plan, const Bf16Rows1024Shape& shape) {
  const int32_t blocks = plan.parts * plan.tiles;
  const int32_t strips = plan.Strips(shape.n) + plan.Strips(shape.second_n);
  const int32_t sums = (2 * plan.parts - 1) * plan.Slice() * (plan.columns + 8) * 4;
  const int32_t ring = plan.Stages(shape.k) * Bf16Rows1024StageBytes(plan.columns);
  return {.x = strips * blocks,
          .y = static_cast<int32_t>(SharesOf(SharesOf(shape.rows, kTile), plan.tiles)),
          .threads = 288,
          .shared = std::max(ring, sums),
          .cluster = blocks};
}

bool Bf16Rows1024Can(const RowsFacts& x, const MatrixFacts& w, const RowsFacts& out) {
  return x.type == DType::kBf16 && x.rows >= 1 && x.aligned(16) && TakesMatrix(w, out);
}

std::optional<Bf16Rows1024Plan> PlanBf16Rows1024(const RowsFacts& x,
                                                 const MatrixFacts& w,
                                                 const RowsFacts& out,
                                                 const MatrixFacts& second,
                                                 const RowsFacts& second_out) {
  if (x.rows < kPairRowsMin || x.rows > kPairRowsMax || !Bf16Rows1024Can(x, w, out) ||
      !TakesMatrix(second, second_out) || w.k != second.k) {
    return std::nullopt;
  }
  const Bf16Rows1024Plan plan =
      PlanBf16Rows1024({.rows = x.rows, .k = w.k, .n = w.n, .second_n = second.n});
  if (plan.columns == 0) return std::nullopt;
  return plan;
}

std::optional<Bf16Rows1024Plan> PlanBf16Rows1024Router(const RowsFacts& x,
                                                       const MatrixFacts& w,
                                                       const RowsFacts& out) {
  if (x.rows < kRouterRowsMin || x.rows > kRouterRowsMax || !Bf16Rows1024Can(x, w, out)) {
    return std::nullopt;
  }
  const Bf16Rows1024Plan plan = PlanBf16Rows1024({.rows = x.rows, .k = w.k, .n = w.n});
  if (plan.parts <= 1) return std::nullopt;
  return plan;
}

std::optional<Bf16Rows1024Plan> PlanBf16Rows1024Queries(const RowsFacts& x,
                                                        const MatrixFacts& w,
                                                        const RowsFacts& out) {
  if (x.rows < kQueryRowsMin || x.rows > kQueryRowsMax || !Bf16Rows1024Can(x, w, out)) {
    return std::nullopt;
  }
  const Bf16Rows1024Plan plan = PlanBf16Rows1024({.rows = x.rows, .k = w.k, .n = w.n});
  if (plan.columns == 0) return std::nullopt;
  return plan;
}

}  // namespace baltoro::cuda
