// Root mean square norms, one block a row. At small T a launch is latency alone: the row is read
// once and stays in registers, the weight is read before the kernel ahead has ended. Many rows with
// a sum: norm_stream.cu. Floor at large T: bytes of the rows.

#include <cstdlib>
#include <type_traits>

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/norm_stream.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreadsMax = 1024;

// kVectors: eights of a row that one thread holds. Delta: what is added to x; void: nothing.
// kBlocks: of K2's width on a multiprocessor, which the registers must allow.
template <typename X,
          typename Out,
          typename Delta,
          int kVectors,
          bool kQuantise = false,
          bool kOrder = false,
          int kBlocks = kVectors == 1 ? 2 : 1>
__global__ void __launch_bounds__(kThreadsMax, kBlocks) NormKernel(NormParams p) {
  __shared__ float partial[32];
  float x[kVectors][kEight], weight[kEight];
  const auto at = [&](int v) { return static_cast<int>(threadIdx.x + v * blockDim.x) * kEight; };
  const int64_t row = blockIdx.x;
  if (p.fetches && threadIdx.x == 0) {
    FetchResidual(static_cast<float*>(p.x) + row * p.x_stride, p.width);
  }
  if (!p.late) hopper::LetDependentsLaunch();
  if (kVectors == 1) LoadEight(p.weight + at(0), p.width - at(0), p.vectors, weight);
  hopper::WaitForPredecessors();

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
  if (p.late) hopper::LetDependentsLaunch();

  Out* const to = static_cast<Out*>(p.out) + row * p.out_stride;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (kVectors > 1) LoadEight(p.weight + at(v), p.width - at(v), p.vectors, weight);
    Normalise(x[v], scale, weight);
    StoreEight(to + at(v), p.width - at(v), p.vectors, x[v]);
    if constexpr (kOrder) WriteOrdered(p, row, at(v), at(v) < p.width, x[v]);
    if constexpr (kQuantise) WriteCodes(p, row, at(v), at(v) < p.width, x[v]);
  }
}

// The same of two rows a block, for as many rows as two on each multiprocessor: what bounds them is
// the way from the L2, and the weight comes but once for both. By registers one block stands on a
// multiprocessor; the loads of both rows are under way together.
template <typename Delta, bool kQuantise, bool kOrder>
__global__ void __launch_bounds__(kThreadsMax, 1) PairNormKernel(NormParams p, int64_t rows) {
  __shared__ float partial[2][32];
  const int at = static_cast<int>(threadIdx.x) * kEight;
  const int64_t first = blockIdx.x, second = first + gridDim.x;
  const bool both = second < rows;
  const bool exists[2] = {at < p.width, at < p.width && both};
  if (p.fetches && threadIdx.x < (both ? 2 : 1)) {
    FetchResidual(static_cast<float*>(p.x) + (threadIdx.x == 0 ? first : second) * p.x_stride,
                  p.width);
  }
  hopper::LetDependentsLaunch();
  float x[2][kEight] = {}, delta[2][kEight] = {}, weight[kEight] = {}, sums[2];
  if (exists[0]) LoadWhole(p.weight + at, weight);
  hopper::WaitForPredecessors();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = r == 0 ? first : second;
    if (exists[r]) {
      LoadWhole(static_cast<const float*>(p.x) + row * p.x_stride + at, x[r]);
      LoadWhole(static_cast<const Delta*>(p.delta) + row * p.delta_stride + at, delta[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = r == 0 ? first : second;
#pragma unroll
    for (int i = 0; i < kEight; ++i) x[r][i] += delta[r][i];
    if (exists[r]) StoreWhole(static_cast<float*>(p.x) + row * p.x_stride + at, x[r]);
    sums[r] = WarpSum(AddSquares(x[r], 0));
  }
  if (threadIdx.x % 32 < 2) {
    partial[threadIdx.x % 32][threadIdx.x / 32] = threadIdx.x % 32 == 0 ? sums[0] : sums[1];
  }
  __syncthreads();
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sums[r] = SumOfWarps(partial[r], static_cast<int>(blockDim.x) / 32);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int64_t row = r == 0 ? first : second;
    if (r == 1 && !both) return;
    Normalise(x[r], ScaleOfSum(sums[r], p.width, p.eps), weight);
    if (exists[r]) {
      StoreWhole(static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride + at, x[r]);
    }
    if constexpr (kOrder) WriteOrdered(p, row, at, exists[r], x[r]);
    if constexpr (kQuantise) WriteCodes(p, row, at, exists[r], x[r]);
  }
}

constexpr int kPairRowsMin = 129;  // fewer have a multiprocessor each

// Rows in bf16.
bool Pairs(int64_t rows, const NormParams& p) {
  return NormChange(256) && p.vectors && p.width % kEight == 0 && rows >= kPairRowsMin &&
         rows <= 256 && Eights(p.width) <= kThreadsMax;
}

template <typename Delta>
void LaunchPairNorm(const OpContext& ctx, int64_t rows, const NormParams& p) {
  auto kernel = PairNormKernel<Delta, false, false>;
  if (p.codes != nullptr) kernel = PairNormKernel<Delta, true, false>;
  if (p.ordered != nullptr) kernel = PairNormKernel<Delta, false, true>;
  LaunchAhead("norm of pairs", StreamOf(ctx), kernel, dim3(static_cast<unsigned>((rows + 1) / 2)),
              (Eights(p.width) + 31) / 32 * 32, p, rows);
}

// The forms for many rows, of rows in bf16; false: neither takes them.
bool LaunchManyNorm(const OpContext& ctx, int64_t rows, const NormParams& p, bool rounded_delta) {
  if (StreamsNorm(rows, p, rounded_delta)) {
    LaunchStreamNorm(ctx, rows, p, rounded_delta);
  } else if (Pairs(rows, p)) {
    rounded_delta ? LaunchPairNorm<__nv_bfloat16>(ctx, rows, p)
                  : LaunchPairNorm<float>(ctx, rows, p);
  } else {
    return false;
  }
  return true;
}

// The same with a delta in f32 for few wide rows: a cluster a row, since one multiprocessor would
// take longest to load and store it.
constexpr int kSpread = 8;  // blocks of a row
constexpr int kSpreadThreads = 128;
constexpr int kSpreadRows = 16;     // at most
constexpr int kSpreadWidth = 4096;  // at least

template <typename Out, bool kQuantise>
__global__ void __cluster_dims__(kSpread, 1, 1) __launch_bounds__(kSpreadThreads)
    SpreadNormKernel(NormParams p) {
  __shared__ float partial[32];
  __shared__ float sums[kSpread];  // of the cluster's blocks
  const int rank = static_cast<int>(blockIdx.x) % kSpread;
  const int64_t row = blockIdx.x / kSpread;
  const int share = p.width / kSpread;
  const int in_share = static_cast<int>(threadIdx.x) * kEight, count = share - in_share;
  const int at = rank * share + in_share;
  float* const from = static_cast<float*>(p.x) + row * p.x_stride + at;
  if (p.fetches && threadIdx.x == 0) FetchResidual(from, share);
  float x[kEight], delta[kEight], weight[kEight];
  LoadEight(p.weight + at, count, true, weight);
  // All blocks are there when one writes to another.
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (p.lets_first) hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  if (!p.lets_first) hopper::LetDependentsLaunch();
  LoadEight(from, count, true, x);
  LoadEight(static_cast<const float*>(p.delta) + row * p.delta_stride + at, count, true, delta);
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] += delta[i];
  const float squares = BlockSum(AddSquares(x, 0), partial);
  if (threadIdx.x < kSpread) {
    asm volatile(
        "{\n"
        ".reg .u32 there;\n"
        "mapa.shared::cluster.u32 there, %0, %1;\n"
        "st.shared::cluster.f32 [there], %2;\n"
        "}\n" ::"r"(hopper::SharedAddress(sums + rank)),
        "r"(threadIdx.x), "f"(squares)
        : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  if (count > 0) StoreEight(from, count, true, x);
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kSpread; ++i) sum += sums[i];
  Normalise(x, ScaleOfSum(sum, p.width, p.eps), weight);
  if (count > 0) StoreEight(static_cast<Out*>(p.out) + row * p.out_stride + at, count, true, x);
  if constexpr (kQuantise) WriteCodes(p, row, at, count > 0, x);
}

bool Spreads(int64_t rows, const NormParams& p) {
  return p.vectors && rows <= kSpreadRows && p.width >= kSpreadWidth &&
         p.width % (kSpread * kEight) == 0 && p.width <= kSpread * kSpreadThreads * kEight;
}

template <typename Out, bool kQuantise = false>
void LaunchSpreadNorm(const OpContext& ctx, int64_t rows, NormParams p) {
  static const bool lets_first = [] {
    const char* const text = std::getenv("BT_H4");
    return text == nullptr || (std::atoi(text) & 1) != 0;
  }();
  p.lets_first = lets_first;
  LaunchAhead("norm", StreamOf(ctx), SpreadNormKernel<Out, kQuantise>,
              dim3(static_cast<unsigned>(rows * kSpread)), kSpreadThreads, p);
}

template <typename X, typename Out, typename Delta>
void LaunchNorm(const OpContext& ctx, int64_t rows, const NormParams& p) {
  constexpr int kWide = 4;
  const int eights = Eights(p.width);
  const int vectors = eights <= kThreadsMax ? 1 : kWide;
  BT_CHECK(eights <= kThreadsMax * kWide);
  const int threads = ((eights + vectors - 1) / vectors + 31) / 32 * 32;
  const auto kernel =
      vectors == 1 ? NormKernel<X, Out, Delta, 1> : NormKernel<X, Out, Delta, kWide>;
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
          .fetches = false,
          .late = false,
          .codes = nullptr,
          .scales = nullptr,
          .ordered = nullptr,
          .lets_first = false};
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
  p.fetches = Fetches(residual.dim(0), p);
  p.late = NormChange(64) && residual.dim(0) <= 128;
  return p;
}

// What the codes of rows that are written now are of: none, but for those of a norm that writes
// them.
void Forget(const OpContext& ctx, const TensorView& out) {
  if (ctx.rounded != nullptr && ctx.rounded->of == out.data) ctx.rounded->of = nullptr;
}

// Whether a norm can write these rows in matrix order too.
bool Orders(const TensorView& out, const NormParams& p) {
  return out.dtype == DType::kBf16 && p.vectors && p.width % 32 == 0 &&
         Eights(p.width) <= kThreadsMax;
}

}  // namespace

void RmsNorm(const OpContext& ctx, TensorView out, TensorView x, TensorView weight, float eps) {
  CheckNorm(out, x, weight);
  const int64_t rows = x.dim(0);
  if (rows == 0) return;
  Forget(ctx, out);
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
  RoundedRows* const rounded = ctx.rounded;
  if (rounded != nullptr && rounded->codes != nullptr && rounded->width == p.width &&
      AddRmsNormRounds(out, residual, delta, weight)) {
    rounded->of = out.data;
    rounded->rows = rows;
    rounded->stride = out.stride[0];
    return AddRmsNormQuantise(ctx, out, rounded->codes, rounded->scales, residual, delta, weight,
                              eps);
  }
  Forget(ctx, out);
  const bool rounded_delta = delta.dtype == DType::kBf16;
  if (ctx.ordered != nullptr && ctx.ordered->data != nullptr && Orders(out, p)) {
    OrderedRows& ordered = *ctx.ordered;
    ordered.of = out.data;
    ordered.rows = rows;
    ordered.stride = out.stride[0];
    p.ordered = static_cast<__nv_bfloat16*>(ordered.data);
    if (LaunchManyNorm(ctx, rows, p, rounded_delta)) return;
    const auto kernel = rounded_delta
                            ? NormKernel<float, __nv_bfloat16, __nv_bfloat16, 1, false, true>
                            : NormKernel<float, __nv_bfloat16, float, 1, false, true>;
    return LaunchAhead("norm, ordered too", StreamOf(ctx), kernel,
                       dim3(static_cast<unsigned>(rows)), (Eights(p.width) + 31) / 32 * 32, p);
  }
  if (!rounded_delta && Spreads(rows, p) && out.dtype == DType::kBf16) {
    return LaunchSpreadNorm<__nv_bfloat16>(ctx, rows, p);
  }
  if (out.dtype == DType::kBf16 && LaunchManyNorm(ctx, rows, p, rounded_delta)) return;
  if (rounded_delta) {
    BT_CHECK(out.dtype == DType::kBf16);
    return LaunchNorm<float, __nv_bfloat16, __nv_bfloat16>(ctx, rows, p);
  }
  if (out.dtype == DType::kF32) return LaunchNorm<float, float, float>(ctx, rows, p);
  LaunchNorm<float, __nv_bfloat16, float>(ctx, rows, p);
}

bool AddRmsNormRounds(const TensorView& out,
                      const TensorView& residual,
                      const TensorView& delta,
                      const TensorView& weight) {
  return out.dtype == DType::kBf16 && out.dim(1) % (kSpread * kBlock) == 0 &&
         Eights(out.dim(1)) <= kThreadsMax && AddParamsOf(out, residual, delta, weight, 0).vectors;
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
  BT_CHECK(AddRmsNormRounds(out, residual, delta, weight));
  const int64_t rows = residual.dim(0);
  if (rows == 0) return;
  p.codes = static_cast<char*>(codes);
  p.scales = scales;
  const bool rounded_delta = delta.dtype == DType::kBf16;
  if (!rounded_delta && Spreads(rows, p)) {
    return LaunchSpreadNorm<__nv_bfloat16, true>(ctx, rows, p);
  }
  if (LaunchManyNorm(ctx, rows, p, rounded_delta)) return;
  const auto kernel = rounded_delta ? NormKernel<float, __nv_bfloat16, __nv_bfloat16, 1, true>
                                    : NormKernel<float, __nv_bfloat16, float, 1, true>;
  LaunchAhead("norm to e4m3", StreamOf(ctx), kernel, dim3(static_cast<unsigned>(rows)),
              (Eights(p.width) + 31) / 32 * 32, p);
}

}  // namespace baltoro::cuda
