#include "ops/cuda/choose/fp8_rows16.h"

#include "ops/cuda/choose/router_rows16.h"

namespace baltoro::cuda {
namespace {

using namespace fp8_rows16;

// Of the blocks on a multiprocessor: another kernel of this kind has room beside it. Beyond that
// the other kernel of few rows (tiles.h) is faster.
constexpr int kSharedMax = 113 * 1024;

int Bytes(int64_t strips, int64_t rows, int64_t k) {
  return Places(static_cast<int>(strips), static_cast<int>(k / 128), static_cast<int>(rows),
                rows > kHalfRows)
      .end;
}

// Rows that each block rounds in about the time of a launch.
bool Rounds(int64_t rows, int64_t k) {
  return rows * SharesOf(k, kUnit) <= kWarps * kUnitsMax;
}

// Strips of a block: the multiprocessor that has most has as few as can be; of equals the most,
// whose rows are rounded once. 0: the matrix is not for this kernel.
int32_t StripsOfBlock(int64_t rows, int64_t n, int64_t k, const Card& card) {
  const int64_t strips = n / kStripRows;
  int32_t best = 0;
  int64_t least = INT64_MAX;
  for (const int32_t each : {1, 2, 7}) {
    const int64_t most = SharesOf(strips / each, card.multiprocessors);
    const bool fits = most * Bytes(each, rows, k) <= kSharedMax;
    if (strips % each != 0 || !fits || most * each > least) continue;
    least = most * each;
    best = each;
  }
  return best;
}

// Form, shapes and alignment; not more than a block rounds where it has to.
bool Takes(const RowsFacts& x,
           int64_t x_columns,
           bool coded,
           const MatrixFacts& w,
           const RowsFacts& out,
           const Card& card) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % kStripRows == 0 && w.k > 0 && w.k % 128 == 0 && w.k / 128 <= kStepsMax &&
         x.type == DType::kBf16 && x.rows >= 1 && x.rows <= kRowsMax && x.width == x_columns &&
         w.aligned(16) && x.aligned(16) && out.aligned(2 * SizeOf(out.type)) &&
         (coded || Rounds(x.rows, w.k)) && StripsOfBlock(x.rows, w.n, w.k, card) > 0;
}

Fp8Rows16Plan PlanOf(int64_t rows, const MatrixFacts& w, int32_t strips, bool coded) {
  Fp8Rows16Plan plan = {.strips = strips,
                        .warps_k = kWarps,
                        .tall = rows > kHalfRows,
                        .coded = coded,
                        .launch = {.x = static_cast<int32_t>(w.n / kStripRows / strips),
                                   .threads = kThreads,
                                   .shared = Bytes(strips, rows, w.k)}};
  while (plan.warps_k > w.k / 128) plan.warps_k /= 2;
  return plan;
}

}  // namespace

std::optional<Fp8Rows16Plan> PlanFp8Rows16(
    const RowsFacts& x, bool coded, const MatrixFacts& w, const RowsFacts& out, const Card& card) {
  if (x.rows > kHalfRows || !Takes(x, w.k, coded, w, out, card)) return std::nullopt;
  return PlanOf(x.rows, w, StripsOfBlock(x.rows, w.n, w.k, card), coded);
}

std::optional<Fp8Rows16Plan> PlanFp8Rows16Gated(const RowsFacts& x,
                                                const MatrixFacts& w,
                                                const RowsFacts& out,
                                                const Card& card) {
  if (!Takes(x, 2 * w.k, false, w, out, card)) return std::nullopt;
  return PlanOf(x.rows, w, StripsOfBlock(x.rows, w.n, w.k, card), false);
}

std::optional<Fp8Rows16Plan> PlanFp8Rows16Router(const RowsFacts& x,
                                                 bool coded,
                                                 const MatrixFacts& w,
                                                 const RowsFacts& out,
                                                 int64_t experts,
                                                 const Card& card) {
  std::optional<Fp8Rows16Plan> plan = PlanFp8Rows16(x, coded, w, out, card);
  if (!plan || plan->strips != 1) return std::nullopt;
  plan->launch.x += static_cast<int32_t>(SharesOf(experts, router_product::kExperts));
  return plan;
}

std::optional<Fp8Rows16Plan> PlanFp8Rows16Queries(const RowsFacts& x,
                                                  const MatrixFacts& w,
                                                  const RowsFacts& out,
                                                  const Card& card) {
  if (x.rows > kHalfRows || !Takes(x, w.k, false, w, out, card) ||
      w.n % (kQueryStrips * kStripRows) != 0) {
    return std::nullopt;
  }
  Fp8Rows16Plan plan = PlanOf(x.rows, w, kQueryStrips, false);
  plan.launch.x += static_cast<int32_t>(x.rows);
  // The weight of the norm, then a sum of squares for each unit.
  plan.launch.shared += static_cast<int32_t>(w.k * 4) + kWarps * kUnitsMax * 4;
  if (plan.launch.shared > kSharedMax) return std::nullopt;
  return plan;
}

}  // namespace baltoro::cuda
