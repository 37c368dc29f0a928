#include "ops/cuda/choose/fp8_rows256.h"

namespace baltoro::cuda {
namespace {

constexpr int kRowsMin = 9, kRowsMax = 256;
constexpr int64_t kColumnsMin = 256;
// Strips at most, and those of the forms that do more than a product.
constexpr int32_t kFullStripRows = 96, kStripRows = 64;

// What is cut: one matrix, or two whose blocks are of one kind. Steps are 128 bytes of a row.
struct Shape {
  int64_t rows = 0, n = 0, steps = 0;
  int64_t second_n = 0, second_steps = 0;

  int64_t Strips(int64_t strip_rows) const {
    return SharesOf(n, strip_rows) + SharesOf(second_n, strip_rows);
  }
  int64_t StepsOfPart(int64_t parts) const {
    return SharesOf(std::max(steps, second_steps), parts);
  }
};

Fp8Rows256Plan PlanOf(const Shape& shape, int32_t strip_rows, int32_t parts) {
  const auto padded =
      static_cast<int32_t>(SharesOf(std::min<int64_t>(shape.rows, kFp8Rows256TileRows), 8) * 8);
  Fp8Rows256Plan plan = {.strip_rows = strip_rows,
                         .parts = parts,
                         .tiles = static_cast<int32_t>(SharesOf(shape.rows, kFp8Rows256TileRows)),
                         .slice = (padded + parts - 1) / parts,
                         .box_rows = padded};
  plan.launch = {.x = static_cast<int32_t>(shape.Strips(strip_rows) * parts),
                 .y = plan.tiles,
                 .threads = 160,
                 .shared = Fp8Rows256SharedBytes(strip_rows, parts, plan.slice),
                 .cluster = parts};
  return plan;
}

// Blocks that run at once: clusters do not fill the groups of 16 to 18 multiprocessors that they
// lie in.
int64_t RoomOf(const Fp8Rows256Plan& plan, const Card& card) {
  const auto at = [](int32_t of) { return static_cast<size_t>(of); };
  const int32_t clusters =
      card.clusters
          .fp8_rows256[at(plan.strip_rows / 32 - 1)][at(plan.parts - 1)][at(plan.box_rows / 8 - 1)];
  return std::max(1, clusters * plan.parts);
}

// Of the cuts whose blocks all run at once the one that should take the shortest time, in ns, by
// what a multiprocessor can read from the L2 while all do ([2112, 7168] by 64 rows: 7.2 us,
// measured 8.4). Clusters that come after others cost far more than that: their rings start empty.
std::optional<Fp8Rows256Plan> ChooseCut(const Shape& shape,
                                        int32_t strip_rows_max,
                                        const Card& card) {
  constexpr int64_t kBytesOfNs = 42, kSumCost = 1000;
  std::optional<Fp8Rows256Plan> best;
  int64_t least = INT64_MAX;
  for (const int32_t strip_rows : {96, 64, 32}) {
    if (strip_rows > strip_rows_max) continue;
    for (int32_t parts = 1; parts <= kFp8Rows256PartsMax; ++parts) {
      const int64_t each = shape.StepsOfPart(parts);
      const bool too_short = shape.second_n > 0 && parts > shape.second_steps;
      if (each > kFp8Rows256StepsMax || parts > shape.steps || too_short) continue;
      const Fp8Rows256Plan plan = PlanOf(shape, strip_rows, parts);
      const int64_t blocks = shape.Strips(strip_rows) * parts * plan.tiles;
      const int64_t room = RoomOf(plan, card);
      if (blocks > room) continue;
      // Blocks of a multiprocessor share what it can read.
      const int64_t most = SharesOf(room, card.multiprocessors), usable = room / most;
      const int64_t beside = SharesOf(blocks, usable);
      const int64_t bytes = each * (strip_rows + plan.box_rows) * 128;
      const int64_t cost = beside * bytes / kBytesOfNs + (parts > 1 ? kSumCost : 0);
      if (cost >= least) continue;
      least = cost;
      best = plan;
    }
  }
  return best;
}

bool TakesOut(const RowsFacts& out) {
  return out.aligned(4 * SizeOf(out.type));
}

// All but the choice.
bool TakesMatrix(const MatrixFacts& w, const RowsFacts& out) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % 8 == 0 && w.k % 128 == 0 && w.k >= kColumnsMin && out.rows >= kRowsMin &&
         out.rows <= kRowsMax && w.aligned(16) && TakesOut(out);
}

Shape ShapeOf(const MatrixFacts& w, int64_t rows) {
  return {.rows = rows, .n = w.n, .steps = w.k / 128};
}

}  // namespace

std::optional<Fp8Rows256Plan> PlanFp8Rows256(const MatrixFacts& w,
                                             const RowsFacts& out,
                                             const Card& card) {
  if (!TakesMatrix(w, out)) return std::nullopt;
  return ChooseCut(ShapeOf(w, out.rows), kFullStripRows, card);
}

std::optional<Fp8Rows256Plan> PlanFp8Rows256Router(const MatrixFacts& w,
                                                   const RowsFacts& out,
                                                   const MatrixFacts& router,
                                                   const RowsFacts& logits,
                                                   const RowsFacts& x,
                                                   const Card& card) {
  const bool takes = TakesMatrix(w, out) && router.form == WeightForm::kBf16 && router.count == 1 &&
                     router.k == w.k && router.n % 4 == 0 && router.aligned(16) &&
                     x.type == DType::kBf16 && x.aligned(16) && TakesOut(logits);
  if (!takes) return std::nullopt;
  Shape shape = ShapeOf(w, out.rows);
  shape.second_n = router.n;
  shape.second_steps = router.k / kMiddleBf16Columns;
  return ChooseCut(shape, kStripRows, card);
}

std::optional<Fp8Rows256Plan> PlanFp8Rows256Queries(const MatrixFacts& w,
                                                    const RowsFacts& out,
                                                    const Card& card) {
  if (!TakesMatrix(w, out)) return std::nullopt;
  return ChooseCut(ShapeOf(w, out.rows), kStripRows, card);
}

}  // namespace baltoro::cuda
