// The rows are first cut into tiles, once for all threads. Then each item of work is a group of
// panels for a chunk of rows: with few rows the groups are long runs of weights, read once from
// memory; with many rows they are sized so that a thread's rows, panels and sums stay in its second
// cache.

#include "ops/cpu/row_product.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kRowsMax = 256;        // of one item; of rows of f32 half as many
constexpr int64_t kPanelsMax = 8;        // of one item with many rows
constexpr int64_t kItemsPerThread = 6;   // enough for the threads to end together
constexpr int64_t kItemBytes = 1 << 16;  // of weights: less is not worth an item of its own

ProductPlan PlanProduct(
    int64_t rows, int64_t row_number_bytes, int64_t panels, int64_t panel_bytes, int threads) {
  ProductPlan plan;
  plan.rows = std::min(rows, row_number_bytes > 2 ? kRowsMax / 2 : kRowsMax);
  const int64_t items = kItemsPerThread * threads;
  const int64_t row_chunks = CeilDiv(rows, plan.rows);
  plan.panels = std::clamp<int64_t>(panels * row_chunks / items, 1, kPanelsMax);
  if (rows <= kPanelColumns) {
    plan.panels = std::max(plan.panels, std::min(kPanelsMax, kItemBytes / panel_bytes));
  }
  // Few panels (a router): shorter chunks of rows give every thread work.
  while (plan.rows > 2 * kPanelColumns &&
         CeilDiv(rows, plan.rows) * CeilDiv(panels, plan.panels) < int64_t{2} * threads) {
    plan.rows = RoundUp(plan.rows / 2, kPanelColumns);
  }
  return plan;
}

int64_t BufferFloats(const ProductPlan& plan) {
  return plan.rows * ResultStride(plan.panels * kPanelColumns);
}

}  // namespace

RowProduct::RowProduct(const OpContext& ctx, DType act, const PackedMatrix& w, int64_t rows_max)
    : ctx_(ctx), w_(w), product_(act, w), rows_max_(rows_max), plan_(PlanOf(rows_max)) {
  CheckPacked(w);
  BT_CHECK(w.count == 1 && ctx.scratch != nullptr);
  input_ = product_.Allocate(*ctx.scratch, rows_max);
  buffers_ = ctx.scratch->AllocateArray<float>(
      static_cast<size_t>(ThreadCount(ctx) * BufferFloats(plan_)));
}

int64_t RowProduct::ScratchBytes(DType act, const PackedMatrix& w, int64_t rows_max, int threads) {
  BT_CHECK(IsPlain(w.form));
  const DType tile = KernelsFor(act, PlainType(w.form)).tile;
  const ProductPlan plan = PlanProduct(rows_max, SizeOf(tile), CeilDiv(w.n, kPanelColumns),
                                       PanelBytes(PlainType(w.form), w.k), threads);
  return TileBytes(tile, rows_max, w.k) + threads * BufferFloats(plan) * int64_t{sizeof(float)};
}

ProductPlan RowProduct::PlanOf(int64_t rows) const {
  return PlanProduct(rows, product_.number_bytes(), CeilDiv(w_.n, kPanelColumns),
                     product_.panel_bytes(), ThreadCount(ctx_));
}

void RowProduct::Run(const RowSource& x, int64_t rows, const Store& store) const {
  BT_CHECK(rows <= rows_max_);
  if (rows == 0) return;
  const int64_t fill_items = rows * w_.k > (1 << 16) ? CeilDiv(rows, kTileRows) : 1;
  const int64_t fill_rows = fill_items == 1 ? rows : kTileRows;
  ParallelFor(ctx_, fill_items, [&](int64_t item, int) {
    const int64_t begin = item * fill_rows;
    product_.Fill(input_, x, begin, std::min(rows, begin + fill_rows));
  });

  ProductPlan plan = PlanOf(rows);
  plan.rows = std::min(plan.rows, plan_.rows);  // the buffers are of that plan
  plan.panels = std::min(plan.panels, plan_.panels);
  const int64_t row_chunks = CeilDiv(rows, plan.rows);
  const int64_t panel_groups = CeilDiv(CeilDiv(w_.n, kPanelColumns), plan.panels);
  ParallelFor(ctx_, row_chunks * panel_groups, [&](int64_t item, int thread) {
    // Groups of panels innermost: a chunk of rows stays in the second cache over all of them.
    const int64_t row = item / panel_groups * plan.rows;
    const int64_t count = std::min(plan.rows, rows - row);
    const int64_t begin = item % panel_groups * plan.panels * kPanelColumns;
    const int64_t end = std::min(w_.n, begin + plan.panels * kPanelColumns);
    float* c = product_.Multiply(input_, row, count, w_, begin, end,
                                 buffers_ + thread * BufferFloats(plan_),
                                 end < w_.n ? PanelOf(w_, end) : nullptr);
    const int64_t stride = ProductStride(begin, end);
    for (int64_t i = 0; i < count; ++i) store(row + i, begin, end - begin, c + i * stride);
  });
}

}  // namespace baltoro::cpu
