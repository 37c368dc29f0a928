#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/row_product.h"

namespace baltoro::cpu {

void Linear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && w.count == 1);
  BT_CHECK(x.dim(1) == w.k && out.dim(1) == w.n && out.dim(0) == x.dim(0));
  BT_CHECK(x.dtype == DType::kBf16 || x.dtype == DType::kF32);
  BT_CHECK(out.dtype == DType::kBf16 || out.dtype == DType::kF32);
  CheckPacked(w);
  const int64_t rows = x.dim(0);
  if (rows == 0) return;

  const RowProduct product(ctx, x.dtype, w, rows);
  const int64_t size = SizeOf(out.dtype);
  product.Run({.data = x.data, .dtype = x.dtype, .stride = x.stride[0]}, rows,
              [&](int64_t row, int64_t begin, int64_t count, float* values) {
                char* to = static_cast<char*>(out.data) + (row * out.stride[0] + begin) * size;
                StoreRow(product.kernels(), to, out.dtype, values, count);
              });
}

}  // namespace baltoro::cpu
