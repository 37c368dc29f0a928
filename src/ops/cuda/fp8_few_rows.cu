#include "ops/cuda/fp8_few_rows.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_few_rows_device.cuh"
#include "ops/cuda/product.h"
#include "ops/cuda/product_layout.h"

namespace baltoro::cuda {
namespace {

using namespace fp8_few;

constexpr int kMultiprocessors = 132;
// Of the blocks on a multiprocessor: another kernel of this kind has room beside it. Beyond that
// the other kernel of few rows (product.h) is faster.
constexpr int kSharedMax = 113 * 1024;

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

// Rows that each block rounds in about the time of a launch.
bool Rounds(int64_t rows, int64_t k) {
  return rows * ((k + kUnit - 1) / kUnit) <= kWarps * kUnitsMax;
}

QuantisedRows Known(const OpContext& ctx, const TensorView& x) {
  return KnownRows(ctx, x.data, x.stride[0], x.dim(0), x.dim(1));
}

template <int kStrips, bool kTall, bool kCoded>
__global__ void __launch_bounds__(kThreads, 2) Fp8FewRowsKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  MultiplyStrips<kStrips, kTall, false, kCoded>(p, memory, static_cast<int>(blockIdx.x));
}

template <int kStrips>
void Launch(const Params& p, cudaStream_t stream) {
  const bool tall = p.rows > kHalfRows;
  const int bytes = Places(kStrips, p.steps, p.rows, tall).end;
  const auto kernel = p.codes != nullptr ? Fp8FewRowsKernel<kStrips, false, true>
                      : tall             ? Fp8FewRowsKernel<kStrips, true, false>
                                         : Fp8FewRowsKernel<kStrips, false, false>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "FP8 product of few rows");
  const Status launched = LaunchOverlapped(
      "FP8 product of few rows", kernel, dim3(static_cast<unsigned>(p.strips / kStrips)),
      dim3(kThreads), static_cast<size_t>(bytes), stream, 1, p);
  CheckLaunch("FP8 product of few rows");
  BT_CHECK(launched.ok());
}

void Run(const OpContext& ctx, const Params& p, const PackedMatrix& w) {
  switch (StripsOfBlock(p.rows, w.n, w.k)) {
    case 1:
      return Launch<1>(p, StreamOf(ctx));
    case 2:
      return Launch<2>(p, StreamOf(ctx));
    default:
      return Launch<7>(p, StreamOf(ctx));
  }
}

}  // namespace

// Strips of a block: the multiprocessor that has most has as few as can be; of equals the most,
// whose rows are rounded once.
int fp8_few::StripsOfBlock(int64_t rows, int64_t n, int64_t k) {
  const int64_t strips = n / kStripRows;
  int best = 0;
  int64_t least = INT64_MAX;
  for (const int each : {1, 2, 7}) {
    const int64_t bytes =
        Places(each, static_cast<int>(k / 128), static_cast<int>(rows), rows > kHalfRows).end;
    const int64_t blocks = strips / each;
    const int64_t most = (blocks + kMultiprocessors - 1) / kMultiprocessors;
    if (strips % each != 0 || most * bytes > kSharedMax || most * each > least) continue;
    least = most * each;
    best = each;
  }
  return best;
}

bool fp8_few::Takes(const TensorView& out,
                    const TensorView& x,
                    int64_t x_columns,
                    const PackedMatrix& w,
                    bool coded) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % kStripRows == 0 && w.k > 0 && w.k % 128 == 0 && w.k / 128 <= kStepsMax &&
         x.dtype == DType::kBf16 && x.dim(0) >= 1 && x.dim(0) <= kRowsMax &&
         x.dim(1) == x_columns && Aligned(w.data, 0, 16) &&
         Aligned(x.data, x.dim(0) == 1 ? 0 : x.stride[0] * 2, 16) &&
         Aligned(out.data, out.dim(0) <= 1 ? 0 : out.stride[0] * SizeOf(out.dtype),
                 2 * SizeOf(out.dtype)) &&
         (coded || Rounds(x.dim(0), w.k)) && StripsOfBlock(x.dim(0), w.n, w.k) > 0;
}

fp8_few::Params fp8_few::ParamsOf(const TensorView& out,
                                  const TensorView& x,
                                  const PackedMatrix& w) {
  const int64_t rows = x.dim(0);
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  Params p = {};
  p.w = static_cast<const char*>(w.data);
  p.w_scales = reinterpret_cast<const float*>(p.w + layout.scales);
  p.strips = static_cast<int32_t>(w.n / kStripRows);
  p.steps = static_cast<int32_t>(layout.steps);
  p.warps_k = kWarps;
  while (p.warps_k > p.steps) p.warps_k /= 2;
  p.x = static_cast<const char*>(x.data);
  p.x_row_bytes = rows == 1 ? 0 : x.stride[0] * 2;
  p.rows = static_cast<int32_t>(rows);
  p.out = out.data;
  p.out_stride = out.stride[0];
  p.bf16 = out.dtype == DType::kBf16;
  return p;
}

fp8_few::Params fp8_few::ParamsOf(const OpContext& ctx,
                                  const TensorView& out,
                                  const TensorView& x,
                                  const PackedMatrix& w) {
  Params p = ParamsOf(out, x, w);
  const QuantisedRows known = Known(ctx, x);
  p.codes = static_cast<const char*>(known.x);
  p.x_scales = known.x_scales;
  return p;
}

bool Fp8FewRowsTakes(const OpContext& ctx,
                     const TensorView& out,
                     const TensorView& x,
                     const PackedMatrix& w) {
  return x.dim(0) <= kHalfRows && fp8_few::Takes(out, x, w.k, w, Known(ctx, x).x != nullptr);
}

void Fp8FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(Fp8FewRowsTakes(ctx, out, x, w) && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  Run(ctx, fp8_few::ParamsOf(ctx, out, x, w), w);
}

bool Fp8FewRowsGatedTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return fp8_few::Takes(out, x, 2 * w.k, w);
}

void Fp8FewRowsGated(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(Fp8FewRowsGatedTakes(out, x, w) && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  Params p = fp8_few::ParamsOf(out, x, w);
  p.gated = true;
  Run(ctx, p, w);
}

}  // namespace baltoro::cuda
