// Root mean square norms, one block a row. At small T a launch is latency alone: the row is read
// once and stays in registers, the weight is read before the kernel ahead has ended. Many rows with
// a sum: norm_stream.cu. Floor at large T: bytes of the rows.

#include <type_traits>

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/norm_copies_device.cuh"
#include "ops/cuda/norm_device.cuh"
#include "ops/cuda/norm_stream.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreadsMax = 1024;

// kVectors: eights of a row that one thread holds. Delta: what is added to x; void: nothing.
// Two rows of K2's width stand on a multiprocessor, which the registers must allow.
template <typename X,
          typename Out,
          typename Delta,
          int kVectors,
          bool kQuantise = false,
          bool kOrder = false>
__global__ void __launch_bounds__(kThreadsMax, kVectors == 1 ? 2 : 1) NormKernel(NormParams p) {
  __shared__ float partial[32];
  float x[kVectors][kEight], weight[kEight];
  const auto at = [&](int v) { return static_cast<int>(threadIdx.x + v * blockDim.x) * kEight; };
  hopper::LetDependentsLaunch();
  if (kVectors == 1) LoadEight(p.weight + at(0), p.width - at(0), p.vectors, weight);
  hopper::WaitForPredecessors();

  const int64_t row = blockIdx.x;
  X* const from = static_cast<X*>(p.x) + row * p.x_stride;
  float squares = 0;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    LoadEight(from + at(v), p.width - at(v), p.vectors, x[v]);
    if constexpr (!std::is_void_v<Delta>) {
      float delta[kEight];
      const Delta* const added = static_cast<const Delta*>(p.delta) + row * p.delta_stride;
      LoadEight(added + at(v), p.width - at(v), p.vectors, delta);
#pragma unroll
      for (int i = 0; i < kEight; ++i) x[v][i] += delta[i];
      StoreEight(from + at(v), p.width - at(v), p.vectors, x[v]);
    }
    squares = AddSquares(x[v], squares);
  }
  const float scale = NormScale(squares, p.width, p.eps, partial);

  Out* const to = static_cast<Out*>(p.out) + row * p.out_stride;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (kVectors > 1) LoadEight(p.weight + at(v), p.width - at(v), p.vectors, weight);
    Normalise(x[v], scale, weight);
    StoreEight(to + at(v), p.width - at(v), p.vectors, x[v]);
    const bool exists = at(v) < p.width;
    if constexpr (kOrder) WriteOrdered(p.copies.ordered, row, p.width, at(v), exists, x[v]);
    if constexpr (kQuantise) {
      WriteCodes(p.copies.codes, p.copies.scales, row, p.width, at(v), exists, x[v]);
    }
  }
}

// The same with a delta in f32 for few wide rows: a cluster a row, since one multiprocessor would
// take longest to load and store it. Blocks tell each other what their warps' sums are, which are
// added up as NormKernel adds its own: where blocks are whole warps, the same bits.
constexpr int kSpreadWidth = 4096;  // at least
constexpr int kSpreadMost = 8;      // blocks of a row
constexpr int kSpreadWhole = 4;     // up to so many blocks have whole warps alone

template <int kSpread, bool kQuantise, bool kOrder>
__global__ void __cluster_dims__(kSpread, 1, 1) __launch_bounds__(kThreadsMax / kSpread)
    SpreadNormKernel(NormParams p) {
  __shared__ float partial[32];  // of the cluster's warps
  const int rank = static_cast<int>(blockIdx.x) % kSpread;
  const int64_t row = blockIdx.x / kSpread;
  const int share = p.width / kSpread, warps = static_cast<int>(blockDim.x) / 32;
  const int in_share = static_cast<int>(threadIdx.x) * kEight, count = share - in_share;
  const int at = rank * share + in_share;
  // With eight blocks a row it costs more than it gains (docs/kernels/rows.md).
  constexpr bool kEarly = kSpread <= kSpreadWhole;
  if (kEarly) hopper::LetDependentsLaunch();
  float x[kEight], delta[kEight], weight[kEight];
  LoadEight(p.weight + at, count, true, weight);
  // All blocks are there when one writes to another.
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  hopper::WaitForPredecessors();
  if (!kEarly) hopper::LetDependentsLaunch();
  float* const from = static_cast<float*>(p.x) + row * p.x_stride + at;
  LoadEight(from, count, true, x);
  LoadEight(static_cast<const float*>(p.delta) + row * p.delta_stride + at, count, true, delta);
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] += delta[i];
  const float squares = WarpSum(AddSquares(x, 0));
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  if (lane < kSpread) {
    asm volatile(
        "{\n"
        ".reg .u32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.f32 [there], %2;\n"
        "}\n" ::"r"(hopper::SharedAddress(partial + rank * warps + warp)),
        "r"(lane), "f"(squares)
        : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  if (count > 0) StoreEight(from, count, true, x);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  Normalise(x, ScaleOfSum(SumOfWarps(partial, kSpread * warps), p.width, p.eps), weight);
  auto* const to = static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride + at;
  if (count > 0) StoreEight(to, count, true, x);
  if constexpr (kOrder) WriteOrdered(p.copies.ordered, row, p.width, at, count > 0, x);
  if constexpr (kQuantise) {
    WriteCodes(p.copies.codes, p.copies.scales, row, p.width, at, count > 0, x);
  }
}

// Blocks of a row, as many as leave each multiprocessor about one; 0: it is not spread.
int Spread(int64_t rows, const NormParams& p, bool rounded_delta) {
  if (rounded_delta || !p.vectors || p.width < kSpreadWidth || p.width > kThreadsMax * kEight) {
    return 0;
  }
  const int blocks = rows <= 16 ? kSpreadMost : rows <= 32 ? kSpreadWhole : rows <= 64 ? 2 : 0;
  if (blocks == 0) return 0;
  const int columns = blocks > kSpreadWhole ? kEight : 32 * kEight;
  if (p.width % (blocks * columns) != 0) return 0;
  return p.copies.ordered == nullptr || p.width % (blocks * 32) == 0 ? blocks : 0;
}

template <int kSpread>
void LaunchSpreadNorm(const OpContext& ctx, int64_t rows, const NormParams& p) {
  auto kernel = SpreadNormKernel<kSpread, false, false>;
  if (p.copies.codes != nullptr) kernel = SpreadNormKernel<kSpread, true, false>;
  if (p.copies.ordered != nullptr) kernel = SpreadNormKernel<kSpread, false, true>;
  const int threads = (p.width / kSpread / kEight + 31) / 32 * 32;
  LaunchAhead("norm", StreamOf(ctx), kernel, dim3(static_cast<unsigned>(rows * kSpread)), threads,
              p);
}

void LaunchSpreadNorm(const OpContext& ctx, int spread, int64_t rows, const NormParams& p) {
  switch (spread) {
    case 2:
      return LaunchSpreadNorm<2>(ctx, rows, p);
    case 4:
      return LaunchSpreadNorm<4>(ctx, rows, p);
    default:
      return LaunchSpreadNorm<8>(ctx, rows, p);
  }
}

template <typename X, typename Out, typename Delta>
void LaunchNorm(const OpContext& ctx, int64_t rows, const NormParams& p) {
  constexpr int kWide = 4;
  const int eights = Eights(p.width);
  const int vectors = eights <= kThreadsMax ? 1 : kWide;
  BT_CHECK(eights <= kThreadsMax * kWide);
  const int threads = ((eights + vectors - 1) / vectors + 31) / 32 * 32;
  auto kernel = vectors == 1 ? NormKernel<X, Out, Delta, 1> : NormKernel<X, Out, Delta, kWide>;
  if constexpr (!std::is_void_v<Delta> && std::is_same_v<Out, __nv_bfloat16>) {
    if (p.copies.codes != nullptr) kernel = NormKernel<X, Out, Delta, 1, true>;
    if (p.copies.ordered != nullptr) kernel = NormKernel<X, Out, Delta, 1, false, true>;
  }
  LaunchAhead("norm", StreamOf(ctx), kernel, dim3(static_cast<unsigned>(rows)), threads, p);
}

void CheckNorm(const TensorView& out, const TensorView& x, const TensorView& weight) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && weight.rank == 1);
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == x.dim(1) && weight.dim(0) == x.dim(1));
  BT_CHECK(weight.dtype == DType::kF32);
  BT_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBf16);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
}

NormParams ParamsOf(const TensorView& out, const TensorView& x, const TensorView& weight) {
  return {.x = x.data,
          .delta = nullptr,
          .out = out.data,
          .weight = weight.as<float>(),
          .x_stride = x.stride[0],
          .delta_stride = 0,
          .out_stride = out.stride[0],
          .width = static_cast<int>(x.dim(1)),
          .eps = 0,
          .vectors =
              InVectors(x) && InVectors(out) && reinterpret_cast<uintptr_t>(weight.data) % 16 == 0,
          .copies = {}};
}

NormParams AddParamsOf(const TensorView& out,
                       const TensorView& residual,
                       const TensorView& delta,
                       const TensorView& weight,
                       float eps) {
  CheckNorm(out, residual, weight);
  BT_CHECK(residual.dtype == DType::kF32 && delta.rank == 2);
  BT_CHECK(delta.dtype == DType::kF32 || delta.dtype == DType::kBf16);
  BT_CHECK(delta.dim(0) == residual.dim(0) && delta.dim(1) == residual.dim(1));
  NormParams p = ParamsOf(out, residual, weight);
  p.delta = delta.data;
  p.delta_stride = delta.stride[0];
  p.eps = eps;
  p.vectors = p.vectors && InVectors(delta);
  return p;
}

// Whether a norm with a sum can write these rows as codes, in matrix order.
bool Rounds(const TensorView& out, const NormParams& p) {
  return out.dtype == DType::kBf16 && p.vectors && p.width % (kSpreadMost * kCodeBlock) == 0 &&
         Eights(p.width) <= kThreadsMax;
}
bool Orders(const TensorView& out, const NormParams& p) {
  return out.dtype == DType::kBf16 && p.vectors && p.width % 32 == 0 &&
         Eights(p.width) <= kThreadsMax;
}

// A norm with a sum, rows in bf16, and the copy that `p` has.
void LaunchSumNorm(const OpContext& ctx, int64_t rows, const NormParams& p, bool rounded_delta) {
  if (StreamsNorm(rows, p, rounded_delta)) return LaunchStreamNorm(ctx, rows, p, rounded_delta);
  if (const int spread = Spread(rows, p, rounded_delta); spread > 0) {
    return LaunchSpreadNorm(ctx, spread, rows, p);
  }
  return rounded_delta ? LaunchNorm<float, __nv_bfloat16, __nv_bfloat16>(ctx, rows, p)
                       : LaunchNorm<float, __nv_bfloat16, float>(ctx, rows, p);
}

}  // namespace

void RmsNorm(const OpContext& ctx, TensorView out, TensorView x, TensorView weight, float eps) {
  CheckNorm(out, x, weight);
  const int64_t rows = x.dim(0);
  if (rows == 0) return;
  ForgetNormCopies(ctx, out);
  NormParams p = ParamsOf(out, x, weight);
  p.eps = eps;
  const bool wide_in = x.dtype == DType::kF32, wide_out = out.dtype == DType::kF32;
  if (wide_in && wide_out) return LaunchNorm<float, float, void>(ctx, rows, p);
  if (wide_in) return LaunchNorm<float, __nv_bfloat16, void>(ctx, rows, p);
  if (wide_out) return LaunchNorm<__nv_bfloat16, float, void>(ctx, rows, p);
  LaunchNorm<__nv_bfloat16, __nv_bfloat16, void>(ctx, rows, p);
}

void AddRmsNorm(const OpContext& ctx,
                TensorView out,
                TensorView residual,
                TensorView delta,
                TensorView weight,
                float eps) {
  NormParams p = AddParamsOf(out, residual, delta, weight, eps);
  const int64_t rows = residual.dim(0);
  if (rows == 0) return;
  p.copies = TakeNormCopies(ctx, out, Rounds(out, p), Orders(out, p));
  const bool rounded_delta = delta.dtype == DType::kBf16;
  if (out.dtype == DType::kBf16) return LaunchSumNorm(ctx, rows, p, rounded_delta);
  BT_CHECK(!rounded_delta);
  LaunchNorm<float, float, float>(ctx, rows, p);
}

void AddRmsNormQuantise(const OpContext& ctx,
                        TensorView out,
                        void* codes,
                        float* scales,
                        TensorView residual,
                        TensorView delta,
                        TensorView weight,
                        float eps) {
  NormParams p = AddParamsOf(out, residual, delta, weight, eps);
  BT_CHECK(Rounds(out, p));
  const int64_t rows = residual.dim(0);
  if (rows == 0) return;
  p.copies = {.codes = static_cast<char*>(codes), .scales = scales};
  LaunchSumNorm(ctx, rows, p, delta.dtype == DType::kBf16);
}

}  // namespace baltoro::cuda
