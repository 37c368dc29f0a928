// Root mean square norms, one block a row. At small T a launch is latency alone: the row is read
// once and stays in registers, the weight is read before the kernel ahead has ended. Many rows with
// a sum: norm_stream.cu. Floor at large T: bytes of the rows.

#include <type_traits>

#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/rows/norm_copies_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"
#include "ops/cuda/rows/norm_stream.cuh"

namespace baltoro::cuda {
namespace {

// kVectors: eights of a row that one thread holds. Delta: what is added to x; void: nothing.
// Two rows of K2's width stand on a multiprocessor, which the registers must allow.
template <typename X,
          typename Out,
          typename Delta,
          int kVectors,
          bool kQuantise = false,
          bool kOrder = false>
__global__ void __launch_bounds__(kNormThreadsMax, kVectors == 1 ? 2 : 1) NormKernel(NormParams p) {
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
template <int kSpread, bool kQuantise, bool kOrder>
__global__ void __cluster_dims__(kSpread, 1, 1) __launch_bounds__(kNormThreadsMax / kSpread)
    SpreadNormKernel(NormParams p) {
  __shared__ float partial[32];  // of the cluster's warps
  const int rank = static_cast<int>(blockIdx.x) % kSpread;
  const int64_t row = blockIdx.x / kSpread;
  const int share = p.width / kSpread, warps = static_cast<int>(blockDim.x) / 32;
  const int in_share = static_cast<int>(threadIdx.x) * kEight, count = share - in_share;
  const int at = rank * share + in_share;
  // With eight blocks a row it costs more than it gains (docs/kernels/rows.md).
  constexpr bool kEarly = kSpread <= kNormSpreadWhole;
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

template <int kSpread>
auto SpreadKernelOf(NormCopy copy) {
  switch (copy) {
    case NormCopy::kCodes:
      return SpreadNormKernel<kSpread, true, false>;
    case NormCopy::kMatrixOrder:
      return SpreadNormKernel<kSpread, false, true>;
    case NormCopy::kNone:
      break;
  }
  return SpreadNormKernel<kSpread, false, false>;
}

template <typename X, typename Out, typename Delta>
auto RowKernelOf(const NormPlan& plan) {
  if (plan.kernel == NormWay::kRowEights4) return NormKernel<X, Out, Delta, kNormWideEights>;
  if constexpr (!std::is_void_v<Delta> && std::is_same_v<Out, __nv_bfloat16>) {
    if (plan.copy == NormCopy::kCodes) return NormKernel<X, Out, Delta, 1, true>;
    if (plan.copy == NormCopy::kMatrixOrder) return NormKernel<X, Out, Delta, 1, false, true>;
  }
  return NormKernel<X, Out, Delta, 1>;
}

// A norm of the types X, Delta (void: nothing is added) and Out by the plan.
template <typename X, typename Out, typename Delta>
void Launch(const OpContext& ctx, const NormPlan& plan, int64_t rows, const NormParams& p) {
  constexpr bool kSpreads = std::is_same_v<Delta, float> && std::is_same_v<Out, __nv_bfloat16>;
  auto kernel = RowKernelOf<X, Out, Delta>(plan);
  switch (plan.kernel) {
    case NormWay::kRowsStreaming:
      return LaunchStreamNorm(ctx, plan, rows, p, std::is_same_v<Delta, __nv_bfloat16>);
    case NormWay::kRowCluster2:
      if constexpr (kSpreads) kernel = SpreadKernelOf<2>(plan.copy);
      break;
    case NormWay::kRowCluster4:
      if constexpr (kSpreads) kernel = SpreadKernelOf<4>(plan.copy);
      break;
    case NormWay::kRowCluster8:
      if constexpr (kSpreads) kernel = SpreadKernelOf<8>(plan.copy);
      break;
    case NormWay::kRowEights1:
    case NormWay::kRowEights4:
      BT_CHECK(Eights(p.width) <= kNormThreadsMax * kNormWideEights);
      break;
  }
  LaunchAhead("norm", StreamOf(ctx), kernel, dim3(static_cast<unsigned>(plan.blocks)), plan.threads,
              p);
}

void CheckNorm(const TensorView& out, const TensorView& x, const TensorView& weight) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && weight.rank == 1);
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == x.dim(1) && weight.dim(0) == x.dim(1));
  BT_CHECK(weight.dtype == DType::kF32);
  BT_CHECK(x.dtype == DType::kF32 || x.dtype == DType::kBf16);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
}

NormQuestion QuestionOf(const TensorView& out, const TensorView& x, const TensorView& weight) {
  return {.x = FactsOf(x),
          .out = FactsOf(out),
          .weight_alignment = AlignmentOf(weight.data),
          .card = ThisCard()};
}

NormParams ParamsOf(const NormPlan& plan,
                    const TensorView& out,
                    const TensorView& x,
                    const TensorView& weight,
                    float eps) {
  return {.x = x.data,
          .delta = nullptr,
          .out = out.data,
          .weight = weight.as<float>(),
          .x_stride = x.stride[0],
          .delta_stride = 0,
          .out_stride = out.stride[0],
          .width = static_cast<int>(x.dim(1)),
          .eps = eps,
          .vectors = plan.vectors,
          .copies = {}};
}

NormQuestion SumQuestionOf(const TensorView& out,
                           const TensorView& residual,
                           const TensorView& delta,
                           const TensorView& weight) {
  CheckNorm(out, residual, weight);
  BT_CHECK(residual.dtype == DType::kF32 && delta.rank == 2);
  BT_CHECK(delta.dtype == DType::kF32 || delta.dtype == DType::kBf16);
  BT_CHECK(delta.dim(0) == residual.dim(0) && delta.dim(1) == residual.dim(1));
  NormQuestion question = QuestionOf(out, residual, weight);
  question.part = FactsOf(delta);
  return question;
}

void LaunchSumNorm(const OpContext& ctx,
                   const NormPlan& plan,
                   const TensorView& out,
                   const TensorView& delta,
                   NormParams p) {
  p.delta = delta.data;
  p.delta_stride = delta.stride[0];
  const int64_t rows = delta.dim(0);
  const bool rounded_delta = delta.dtype == DType::kBf16;
  if (out.dtype != DType::kBf16) {
    BT_CHECK(!rounded_delta);
    return Launch<float, float, float>(ctx, plan, rows, p);
  }
  if (rounded_delta) return Launch<float, __nv_bfloat16, __nv_bfloat16>(ctx, plan, rows, p);
  Launch<float, __nv_bfloat16, float>(ctx, plan, rows, p);
}

}  // namespace

void RmsNorm(const OpContext& ctx, TensorView out, TensorView x, TensorView weight, float eps) {
  CheckNorm(out, x, weight);
  const int64_t rows = x.dim(0);
  if (rows == 0) return;
  ForgetNormCopies(ctx, out);
  const NormPlan plan = ChooseNorm(QuestionOf(out, x, weight));
  Explained(ctx, "norm", plan);
  const NormParams p = ParamsOf(plan, out, x, weight, eps);
  const bool wide_in = x.dtype == DType::kF32, wide_out = out.dtype == DType::kF32;
  if (wide_in && wide_out) return Launch<float, float, void>(ctx, plan, rows, p);
  if (wide_in) return Launch<float, __nv_bfloat16, void>(ctx, plan, rows, p);
  if (wide_out) return Launch<__nv_bfloat16, float, void>(ctx, plan, rows, p);
  Launch<__nv_bfloat16, __nv_bfloat16, void>(ctx, plan, rows, p);
}

void AddRmsNorm(const OpContext& ctx,
                TensorView out,
                TensorView residual,
                TensorView delta,
                TensorView weight,
                float eps) {
  NormQuestion question = SumQuestionOf(out, residual, delta, weight);
  if (residual.dim(0) == 0) return;
  AskForCopies(ctx, out, question);
  const NormPlan plan = ChooseNorm(question);
  Explained(ctx, "sum and norm", plan);
  NormParams p = ParamsOf(plan, out, residual, weight, eps);
  p.copies = TakeNormCopies(ctx, out, plan.copy);
  LaunchSumNorm(ctx, plan, out, delta, p);
}

}  // namespace baltoro::cuda
