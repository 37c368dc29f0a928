// Products with plain matrices of any shape and alignment: a warp an output. Slow; for what no
// other kernel takes.

#include <cuda_bf16.h>

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/ptx/barriers.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kWarps = 8;

__device__ float Element(const void* data, bool bf16, int64_t at) {
  return bf16 ? __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at])
              : static_cast<const float*>(data)[at];
}

struct PlainParams {
  const void *x, *w;
  void* out;
  int64_t x_stride, out_stride, n, k;
  bool x_bf16, w_bf16, out_bf16;
};

__global__ void __launch_bounds__(32 * kWarps) PlainKernel(PlainParams p) {
  const int64_t output = blockIdx.x * int64_t{kWarps} + threadIdx.x / 32, row = blockIdx.y;
  AllowNextKernel();
  WaitForEarlierKernels();
  if (output >= p.n) return;
  float sum = 0;
  for (int64_t i = threadIdx.x % 32; i < p.k; i += 32) {
    sum += Element(p.x, p.x_bf16, row * p.x_stride + i) * Element(p.w, p.w_bf16, output * p.k + i);
  }
  for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(~0u, sum, d);
  if (threadIdx.x % 32 != 0) return;
  const int64_t at = row * p.out_stride + output;
  if (p.out_bf16) {
    static_cast<__nv_bfloat16*>(p.out)[at] = __float2bfloat16_rn(sum);
  } else {
    static_cast<float*>(p.out)[at] = sum;
  }
}

}  // namespace

void LaunchPlainProduct(TensorView out,
                        TensorView x,
                        const PackedMatrix& w,
                        const LaunchStream& stream) {
  constexpr int64_t kRows = 65535;  // of a launch
  for (int64_t begin = 0; begin < x.dim(0); begin += kRows) {
    const int64_t rows = std::min(kRows, x.dim(0) - begin);
    const TensorView from = x.rows(begin, rows), to = out.rows(begin, rows);
    const PlainParams p = {from.data,
                           w.data,
                           to.data,
                           from.stride[0],
                           to.stride[0],
                           w.n,
                           w.k,
                           from.dtype == DType::kBf16,
                           w.form == WeightForm::kBf16,
                           to.dtype == DType::kBf16};
    const dim3 grid(static_cast<unsigned>((w.n + kWarps - 1) / kWarps),
                    static_cast<unsigned>(rows));
    const Status launched =
        LaunchOverlapped("plain product", PlainKernel, grid, dim3(32 * kWarps), 0, stream, 1, p);
    CheckLaunch("plain product");
    BT_CHECK(launched.ok());
  }
}

}  // namespace baltoro::cuda
