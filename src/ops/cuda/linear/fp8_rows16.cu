#include "ops/cuda/linear/fp8_rows16.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/fp8_rows16_device.cuh"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {
namespace {

using namespace fp8_rows16;

template <int kStrips, bool kTall, bool kCoded>
__global__ void __launch_bounds__(kThreads, 2) Fp8Rows16Kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  MultiplyStrips<kStrips, kTall, false, kCoded>(p, memory, static_cast<int>(blockIdx.x));
}

LaunchNote NoteOf(const Params& p) {
  const int64_t size = p.bf16 ? 2 : 4, columns = int64_t{p.steps} * 128;
  return WaitsFirst(
      "fp8_rows16",
      RowsRegion(p.out, p.rows, p.out_stride * size, p.strips * int64_t{kStripRows} * size),
      {RowsRegion(p.x, p.rows, p.x_row_bytes, columns * (p.gated ? 4 : 2)),
       RegionOf(p.codes, p.rows * columns), RegionOf(p.x_scales, int64_t{p.rows} * p.steps)});
}

template <int kStrips>
void Launch(const Fp8Rows16Plan& plan, const Params& p, const LaunchStream& stream) {
  BT_CHECK(plan.launch.x == p.strips / kStrips && plan.tall == (p.rows > kHalfRows));
  const auto kernel = plan.coded  ? Fp8Rows16Kernel<kStrips, false, true>
                      : plan.tall ? Fp8Rows16Kernel<kStrips, true, false>
                                  : Fp8Rows16Kernel<kStrips, false, false>;
  CheckCuda(AllowShared(kernel, plan.launch.shared), "fp8_rows16");
  const Status launched =
      LaunchOverlapped(NoteOf(p), kernel, dim3(static_cast<unsigned>(plan.launch.x)),
                       dim3(kThreads), static_cast<size_t>(plan.launch.shared), stream, 1, p);
  CheckLaunch("fp8_rows16");
  BT_CHECK(launched.ok());
}

void Run(const OpContext& ctx, const Fp8Rows16Plan& plan, const Params& p) {
  switch (plan.strips) {
    case 1:
      return Launch<1>(plan, p, StreamOf(ctx));
    case 2:
      return Launch<2>(plan, p, StreamOf(ctx));
    default:
      return Launch<7>(plan, p, StreamOf(ctx));
  }
}

}  // namespace

fp8_rows16::Params fp8_rows16::ParamsOf(const Fp8Rows16Plan& plan,
                                        const TensorView& out,
                                        const TensorView& x,
                                        const PackedMatrix& w,
                                        const QuantisedRows& codes) {
  const int64_t rows = x.dim(0);
  BT_CHECK(out.dim(0) == rows && out.dim(1) == w.n && plan.coded == (codes.x != nullptr));
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  Params p = {};
  p.w = static_cast<const char*>(w.data);
  p.w_scales = reinterpret_cast<const float*>(p.w + layout.scales);
  p.strips = static_cast<int32_t>(w.n / kStripRows);
  p.steps = static_cast<int32_t>(layout.steps);
  p.warps_k = plan.warps_k;
  p.x = static_cast<const char*>(x.data);
  p.x_row_bytes = rows == 1 ? 0 : x.stride[0] * 2;
  p.codes = static_cast<const char*>(codes.x);
  p.x_scales = codes.x_scales;
  p.rows = static_cast<int32_t>(rows);
  p.out = out.data;
  p.out_stride = out.stride[0];
  p.bf16 = out.dtype == DType::kBf16;
  return p;
}

void Fp8Rows16Product(const OpContext& ctx,
                      const Fp8Rows16Plan& plan,
                      TensorView out,
                      TensorView x,
                      const PackedMatrix& w,
                      const QuantisedRows& codes) {
  Run(ctx, plan, fp8_rows16::ParamsOf(plan, out, x, w, codes));
}

void Fp8Rows16Gated(const OpContext& ctx,
                    const Fp8Rows16Plan& plan,
                    TensorView out,
                    TensorView x,
                    const PackedMatrix& w) {
  BT_CHECK(x.dim(1) == 2 * w.k);
  Params p = fp8_rows16::ParamsOf(plan, out, x, w);
  p.gated = true;
  Run(ctx, plan, p);
}

}  // namespace baltoro::cuda
