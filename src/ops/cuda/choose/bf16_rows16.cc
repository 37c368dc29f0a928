#include "ops/cuda/choose/bf16_rows16.h"

namespace baltoro::cuda {
namespace {

using namespace bf16_rows16;

int Bytes(int64_t k, int64_t strips) {
  return WeightRows(static_cast<int>(k)).Bytes(static_cast<int>(strips) * kStripRows);
}

// Strips of a block: the multiprocessor that has most has as few as can be; of equals the most,
// whose rows are loaded once. 0: the matrix is not for this kernel.
int32_t StripsOfBlock(int64_t n, int64_t k, const Card& card) {
  const int64_t strips = n / kStripRows;
  int32_t best = 0;
  int64_t least = INT64_MAX;
  for (const int32_t each : {1, 2, 7}) {
    const int64_t bytes = Bytes(k, each);
    if (strips % each != 0 || bytes > kSharedMax) continue;
    const int64_t most = SharesOf(strips / each, card.multiprocessors);
    // What does not fit at once is not ahead of anything.
    if (most * bytes > 2 * kSharedMax) continue;
    if (most * each > least) continue;
    least = most * each;
    best = each;
  }
  return best;
}

bool TakesRows(const RowsFacts& x) {
  return x.type == DType::kBf16 && x.rows >= 1 && x.rows <= kRowsMax && x.aligned(16);
}

bool TakesMatrix(const MatrixFacts& w, const RowsFacts& out, const Card& card) {
  return w.form == WeightForm::kBf16 && w.count == 1 && w.n % kStripRows == 0 && w.n > 0 &&
         w.k % kGroup == 0 && w.k / kGroup >= kWarps && w.k / kGroup <= kGroupsMax &&
         w.aligned(16) && out.aligned(2 * SizeOf(out.type)) && StripsOfBlock(w.n, w.k, card) > 0;
}

// Every block reads all rows: of many blocks that is more than the weights.
bool RowsAreLight(int64_t rows, const MatrixFacts& w, const Card& card) {
  constexpr int64_t kMost = int64_t{32} << 20;
  return rows <= kHalfRows ||
         w.n / kStripRows / StripsOfBlock(w.n, w.k, card) * rows * w.k * 2 <= kMost;
}

bool Takes(const RowsFacts& x, const MatrixFacts& w, const RowsFacts& out, const Card& card) {
  return TakesRows(x) && TakesMatrix(w, out, card) && RowsAreLight(x.rows, w, card);
}

Bf16Rows16Plan PlanOf(int64_t rows, int64_t n, int64_t k, int32_t strips) {
  return {.strips = strips,
          .tall = rows > kHalfRows,
          .launch = {.x = static_cast<int32_t>(n / kStripRows / strips),
                     .threads = kThreads,
                     .shared = Bytes(k, strips)}};
}

}  // namespace

std::optional<Bf16Rows16Plan> PlanBf16Rows16(const RowsFacts& x,
                                             const MatrixFacts& w,
                                             const RowsFacts& out,
                                             const Card& card) {
  if (!Takes(x, w, out, card)) return std::nullopt;
  return PlanOf(x.rows, w.n, w.k, StripsOfBlock(w.n, w.k, card));
}

std::optional<Bf16Rows16Plan> PlanBf16Rows16(const RowsFacts& x,
                                             const MatrixFacts& w,
                                             const RowsFacts& out,
                                             const MatrixFacts& second,
                                             const RowsFacts& second_out,
                                             const Card& card) {
  if (!Takes(x, w, out, card) || !Takes(x, second, second_out, card) || w.k != second.k) {
    return std::nullopt;
  }
  return PlanOf(x.rows, w.n + second.n, w.k, 1);
}

std::optional<Bf16Rows16Plan> PlanBf16Rows16Queries(const RowsFacts& x,
                                                    const MatrixFacts& w,
                                                    const RowsFacts& out,
                                                    const Card& card) {
  if (!TakesRows(x) || !TakesMatrix(w, out, card)) return std::nullopt;
  const int64_t norm_bytes = w.k * 4;  // of the weight of the queries' norm
  if (w.n / kStripRows % kQueryStrips != 0 || Bytes(w.k, kQueryStrips) + norm_bytes > kSharedMax) {
    return std::nullopt;
  }
  Bf16Rows16Plan plan = PlanOf(x.rows, w.n, w.k, kQueryStrips);
  plan.launch.x += static_cast<int32_t>(x.rows);
  plan.launch.shared += static_cast<int32_t>(norm_bytes);
  return plan;
}

}  // namespace baltoro::cuda
