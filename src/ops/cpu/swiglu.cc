#include <algorithm>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "ops/cpu/product.h"

namespace baltoro::cpu {

void Swiglu(const OpContext& ctx, TensorView out, TensorView x) {
  BT_CHECK(x.rank == 2 && out.rank == 2);
  BT_CHECK(out.dim(0) == x.dim(0) && x.dim(1) == 2 * out.dim(1));
  BT_CHECK(x.dtype == DType::kBf16 || x.dtype == DType::kF32);
  BT_CHECK(out.dtype == DType::kBf16 || out.dtype == DType::kF32);
  const int64_t rows = x.dim(0);
  const int64_t inter = out.dim(1);
  constexpr int64_t kSpan = 1024;  // elements at a time, on the stack
  const Kernels& kernels = KernelsFor(x.dtype, DType::kBf16);
  const int64_t spans = CeilDiv(inter, kSpan);
  // One row of a decode step is not worth waking anybody.
  const int64_t items = rows * inter > (1 << 14) ? rows * spans : 1;
  ParallelFor(ctx, items, [&](int64_t item, int) {
    const int64_t first = items == 1 ? 0 : item;
    const int64_t last = items == 1 ? rows * spans : item + 1;
    for (int64_t i = first; i < last; ++i) {
      const int64_t row = i / spans;
      const int64_t begin = i % spans * kSpan;
      const int64_t n = std::min(kSpan, inter - begin);
      float gate[kSpan];
      float up[kSpan];
      const char* in = static_cast<const char*>(x.data) + row * x.stride[0] * SizeOf(x.dtype);
      LoadRow(kernels, gate, in + begin * SizeOf(x.dtype), x.dtype, n);
      LoadRow(kernels, up, in + (inter + begin) * SizeOf(x.dtype), x.dtype, n);
      kernels.silu_mul(gate, gate, up, n);
      char* to = static_cast<char*>(out.data) + (row * out.stride[0] + begin) * SizeOf(out.dtype);
      StoreRow(kernels, to, out.dtype, gate, n);
    }
  });
}

}  // namespace baltoro::cpu
