// silu(gate) * up, eight elements a thread.

#include "ops/cuda/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;

struct SwigluParams {
  const void* x;
  void* out;
  int64_t x_stride, out_stride;
  int width;
  bool vectors;
};

template <typename X, typename Out>
__global__ void __launch_bounds__(kThreads) SwigluKernel(SwigluParams p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int at = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kEight;
  if (at >= p.width) return;
  const X* from = static_cast<const X*>(p.x) + blockIdx.x * p.x_stride + at;
  float gate[kEight], up[kEight];
  LoadEight(from, p.width - at, p.vectors, gate);
  LoadEight(from + p.width, p.width - at, p.vectors, up);
#pragma unroll
  for (int i = 0; i < kEight; ++i) gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
  Out* to = static_cast<Out*>(p.out) + blockIdx.x * p.out_stride + at;
  StoreEight(to, p.width - at, p.vectors, gate);
}

}  // namespace

void Swiglu(const OpContext& ctx, TensorView out, TensorView x) {
  BT_CHECK(x.rank == 2 && out.rank == 2);
  BT_CHECK(x.dim(0) == out.dim(0) && x.dim(1) == 2 * out.dim(1));
  if (out.num_elements() == 0) return;
  const int64_t up_bytes = out.dim(1) * SizeOf(x.dtype);
  const SwigluParams p = {.x = x.data,
                          .out = out.data,
                          .x_stride = x.stride[0],
                          .out_stride = out.stride[0],
                          .width = static_cast<int>(out.dim(1)),
                          .vectors = InVectors(x) && InVectors(out) && up_bytes % 16 == 0};
  const dim3 grid(static_cast<unsigned>(x.dim(0)),
                  static_cast<unsigned>((Eights(p.width) + kThreads - 1) / kThreads));
  const auto launch = [&](void (*kernel)(SwigluParams)) {
    LaunchAhead("swiglu", StreamOf(ctx), kernel, grid, kThreads, p);
  };
  BT_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBf16);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
  const bool wide_in = x.dtype == DType::kF32, wide_out = out.dtype == DType::kF32;
  if (wide_in && wide_out) return launch(SwigluKernel<float, float>);
  if (wide_in) return launch(SwigluKernel<float, __nv_bfloat16>);
  if (wide_out) return launch(SwigluKernel<__nv_bfloat16, float>);
  launch(SwigluKernel<__nv_bfloat16, __nv_bfloat16>);
}

}  // namespace baltoro::cuda
