// y = x W^T. The rows are first cut into tiles, once for all threads. Then each
// item of work is a group of panels for a chunk of rows: with few rows the
// groups are long runs of weights, read once from memory; with many rows they
// are sized so that a thread's rows, panels and sums stay in its second cache.

#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/weight_product.h"

namespace baltoro::cpu {
namespace {

constexpr int64_t kRowsMax = 256;        // of one item; of rows of f32 half as many
constexpr int64_t kPanelsMax = 8;        // of one item with many rows
constexpr int64_t kItemsPerThread = 6;   // enough for the threads to end together
constexpr int64_t kItemBytes = 1 << 16;  // of weights: less is not worth an item of its own

struct LinearPlan {
  int64_t rows = 0;    // of one item
  int64_t panels = 0;  // of one item
  int64_t row_chunks = 0;
  int64_t panel_groups = 0;
};

LinearPlan PlanLinear(
    int64_t rows, int64_t row_number_bytes, int64_t panels, int64_t panel_bytes, int threads) {
  LinearPlan plan;
  plan.rows = std::min(rows, row_number_bytes > 2 ? kRowsMax / 2 : kRowsMax);
  const int64_t items = kItemsPerThread * threads;
  plan.row_chunks = CeilDiv(rows, plan.rows);
  plan.panels = std::clamp<int64_t>(panels * plan.row_chunks / items, 1, kPanelsMax);
  if (rows <= kPanelColumns) {
    plan.panels = std::max(plan.panels, std::min(kPanelsMax, kItemBytes / panel_bytes));
  }
  // Few panels (a router): shorter chunks of rows give every thread work.
  while (plan.rows > 2 * kPanelColumns &&
         CeilDiv(rows, plan.rows) * CeilDiv(panels, plan.panels) < 2 * threads) {
    plan.rows = RoundUp(plan.rows / 2, kPanelColumns);
  }
  plan.row_chunks = CeilDiv(rows, plan.rows);
  plan.panel_groups = CeilDiv(panels, plan.panels);
  return plan;
}

}  // namespace

void Linear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && w.count == 1);
  BT_CHECK(x.dim(1) == w.k && out.dim(1) == w.n && out.dim(0) == x.dim(0));
  BT_CHECK(x.dtype == DType::kBf16 || x.dtype == DType::kF32);
  BT_CHECK(out.dtype == DType::kBf16 || out.dtype == DType::kF32);
  CheckPacked(w);
  const int64_t rows = x.dim(0);
  if (rows == 0) return;
  BT_CHECK(ctx.scratch != nullptr);

  const WeightProduct product(x.dtype, w);
  const ProductInput input = product.Allocate(*ctx.scratch, rows);
  const RowSource source = {.data = x.data, .dtype = x.dtype, .stride = x.stride[0]};
  const int64_t fill_items = rows * w.k > (1 << 16) ? CeilDiv(rows, kTileRows) : 1;
  const int64_t fill_rows = fill_items == 1 ? rows : kTileRows;
  ParallelFor(ctx, fill_items, [&](int64_t item, int) {
    const int64_t begin = item * fill_rows;
    product.Fill(input, source, begin, std::min(rows, begin + fill_rows));
  });

  const int threads = ThreadCount(ctx);
  const LinearPlan plan = PlanLinear(rows, product.number_bytes(), CeilDiv(w.n, kPanelColumns),
                                     product.panel_bytes(), threads);
  const int64_t buffer_floats = plan.rows * ResultStride(plan.panels * kPanelColumns);
  float* buffers = ctx.scratch->AllocateArray<float>(static_cast<size_t>(threads * buffer_floats));
  ParallelFor(ctx, plan.row_chunks * plan.panel_groups, [&](int64_t item, int thread) {
    // Groups of panels innermost: a chunk of rows stays in the second cache over all of them.
    const int64_t row = item / plan.panel_groups * plan.rows;
    const int64_t count = std::min(plan.rows, rows - row);
    const int64_t begin = item % plan.panel_groups * plan.panels * kPanelColumns;
    const int64_t end = std::min(w.n, begin + plan.panels * kPanelColumns);
    const float* c =
        product.Multiply(input, row, count, w, begin, end, buffers + thread * buffer_floats,
                         end < w.n ? PanelOf(w, end) : nullptr);
    char* to = static_cast<char*>(out.data) + (row * out.stride[0] + begin) * SizeOf(out.dtype);
    for (int64_t i = 0; i < count; ++i) {
      StoreRow(product.kernels(), to + i * out.stride[0] * SizeOf(out.dtype), out.dtype,
               c + i * ProductStride(begin, end), end - begin);
    }
  });
}

}  // namespace baltoro::cpu
