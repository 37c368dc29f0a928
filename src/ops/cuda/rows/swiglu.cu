// silu(gate) * up, eight elements a thread.

#include "ops/cuda/choose/norm.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"
#include "ops/cuda/rows/quantise.h"

namespace baltoro::cuda {
namespace {

struct SwigluParams {
  const void* x = nullptr;
  void* out = nullptr;
  int64_t x_stride = 0, out_stride = 0;
  int width = 0;
  uint32_t eights = 0, count = 0;  // of a row, of all rows
  bool vectors = false;
};

// The row and the first column of thread `index`'s eight.
struct Place {
  int64_t row;
  int at;
};
__device__ __forceinline__ Place PlaceOf(const SwigluParams& p, uint32_t index) {
  const uint32_t row = index / p.eights;
  return {row, static_cast<int>((index - row * p.eights) * kEight)};
}

template <typename X, typename Out>
__global__ void __launch_bounds__(kSwigluThreads)
    SwigluKernel(const __grid_constant__ SwigluParams p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index >= p.count) return;
  const Place place = PlaceOf(p, index);
  const X* from = static_cast<const X*>(p.x) + place.row * p.x_stride + place.at;
  float gate[kEight], up[kEight];
  LoadEight(from, p.width - place.at, p.vectors, gate);
  LoadEight(from + p.width, p.width - place.at, p.vectors, up);
#pragma unroll
  for (int i = 0; i < kEight; ++i) gate[i] = GatedUp(gate[i], up[i]);
  Out* to = static_cast<Out*>(p.out) + place.row * p.out_stride + place.at;
  StoreEight(to, p.width - place.at, p.vectors, gate);
}

// The same of bf16 as codes, rows without gaps, bit for bit what a product makes of the rows that
// it would write. A row is whole groups of 16 lanes, which share a scale.
__global__ void __launch_bounds__(kSwigluThreads)
    SwigluCodesKernel(const __grid_constant__ SwigluParams p, char* codes, float* scales) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x;
  const bool there = index < p.count;
  float gate[kEight] = {}, up[kEight] = {}, scale;
  if (there) {
    const Place place = PlaceOf(p, index);
    const auto* from = static_cast<const __nv_bfloat16*>(p.x) + place.row * p.x_stride + place.at;
    LoadEight(from, kEight, true, gate);
    LoadEight(from + p.width, kEight, true, up);
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) gate[i] = GatedUp(gate[i], up[i]);
  RoundToBf16(gate);
  const uint2 rounded = RoundEight(gate, scale);
  if (!there) return;
  const int64_t first = int64_t{index} * kEight;
  *reinterpret_cast<uint2*>(codes + first) = rounded;
  if (first % kCodeBlock == 0) scales[first / kCodeBlock] = scale;
}

SwigluParams ParamsFor(const SwigluPlan& plan, const TensorView& x, int64_t width) {
  SwigluParams p = {.x = x.data, .x_stride = x.stride[0], .width = static_cast<int>(width)};
  p.eights = static_cast<uint32_t>(Eights(p.width));
  BT_CHECK(x.dim(0) * p.eights < int64_t{1} << 31);
  p.count = static_cast<uint32_t>(x.dim(0)) * p.eights;
  p.vectors = plan.vectors;
  return p;
}

dim3 GridOf(const SwigluPlan& plan) {
  return {static_cast<unsigned>(plan.blocks)};
}

SwigluPlan PlanOfCodes(const TensorView& x, const PackedMatrix& w) {
  return ChooseSwiglu({.x = FactsOf(x), .out = {}, .reader = FactsOf(w), .card = ThisCard()});
}

}  // namespace

QuantisedRows SwigluQuantise(const OpContext& ctx, TensorView x, const PackedMatrix& w) {
  const SwigluPlan plan = PlanOfCodes(x, w);
  BT_CHECK(x.rank == 2 && plan.kernel == SwigluWay::kCodes);
  const auto elements = static_cast<size_t>(x.dim(0) * w.k);
  char* const codes = ctx.scratch->AllocateArray<char>(elements);
  float* const scales = ctx.scratch->AllocateArray<float>(elements / kCodeBlock);
  if (elements == 0) return {};
  LaunchAhead("swiglu to e4m3", StreamOf(ctx), SwigluCodesKernel, GridOf(plan), plan.threads,
              ParamsFor(plan, x, w.k), codes, scales);
  return {codes, w.k, scales, w.k / kCodeBlock};
}

void Swiglu(const OpContext& ctx, TensorView out, TensorView x) {
  BT_CHECK(x.rank == 2 && out.rank == 2);
  BT_CHECK(x.dim(0) == out.dim(0) && x.dim(1) == 2 * out.dim(1));
  if (out.num_elements() == 0) return;
  const SwigluPlan plan = ChooseSwiglu({.x = FactsOf(x), .out = FactsOf(out), .card = ThisCard()});
  Explained(ctx, "swiglu", plan);
  SwigluParams p = ParamsFor(plan, x, out.dim(1));
  p.out = out.data;
  p.out_stride = out.stride[0];
  const auto launch = [&](void (*kernel)(SwigluParams)) {
    LaunchAhead("swiglu", StreamOf(ctx), kernel, GridOf(plan), plan.threads, p);
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
