// silu(gate) * up, eight elements a thread.

#include <algorithm>

#include "ops/cuda/fp8_round_device.cuh"
#include "ops/cuda/norm_device.cuh"
#include "ops/cuda/product.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kCodeColumns = 128;  // that share a scale

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
  for (int i = 0; i < kEight; ++i) gate[i] = GatedUp(gate[i], up[i]);
  Out* to = static_cast<Out*>(p.out) + blockIdx.x * p.out_stride + at;
  StoreEight(to, p.width - at, p.vectors, gate);
}

// The same of bf16 as codes, rows without gaps, bit for bit what a product makes of the rows that
// it would write.
__global__ void __launch_bounds__(kThreads)
    SwigluCodesKernel(SwigluParams p, char* codes, float* scales) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int at = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kEight;
  const auto* from = static_cast<const __nv_bfloat16*>(p.x) + blockIdx.x * p.x_stride + at;
  float gate[kEight], up[kEight], scale;
  LoadEight(from, p.width - at, true, gate);
  LoadEight(from + p.width, p.width - at, true, up);
#pragma unroll
  for (int i = 0; i < kEight; ++i) gate[i] = GatedUp(gate[i], up[i]);
  RoundToBf16(gate);
  const uint2 rounded = RoundEight(gate, scale);
  if (at >= p.width) return;
  const int64_t first = int64_t{blockIdx.x} * p.width + at;
  *reinterpret_cast<uint2*>(codes + first) = rounded;
  if (at % kCodeColumns == 0) scales[first / kCodeColumns] = scale;
}

}  // namespace

bool SwigluQuantiseTakes(const TensorView& x, const PackedMatrix& w) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.k % kCodeColumns == 0 &&
         x.rank == 2 && x.dim(1) == 2 * w.k && x.dtype == DType::kBf16 && InVectors(x);
}

QuantisedRows SwigluQuantise(const OpContext& ctx, TensorView x, const PackedMatrix& w) {
  BT_CHECK(SwigluQuantiseTakes(x, w));
  const auto elements = static_cast<size_t>(x.dim(0) * w.k);
  char* const codes = ctx.scratch->AllocateArray<char>(elements);
  float* const scales = ctx.scratch->AllocateArray<float>(elements / kCodeColumns);
  if (elements == 0) return {};
  const SwigluParams p = {.x = x.data,
                          .out = nullptr,
                          .x_stride = x.stride[0],
                          .out_stride = 0,
                          .width = static_cast<int>(w.k),
                          .vectors = true};
  const int threads = std::min(kThreads, (Eights(p.width) + 31) / 32 * 32);
  const dim3 grid(static_cast<unsigned>(x.dim(0)),
                  static_cast<unsigned>((Eights(p.width) + threads - 1) / threads));
  LaunchAhead("swiglu to e4m3", StreamOf(ctx), SwigluCodesKernel, grid, threads, p, codes, scales);
  return {codes, w.k, scales, w.k / kCodeColumns};
}

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
