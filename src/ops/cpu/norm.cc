#include <cmath>

#include "ops/cpu/element_types.h"

namespace baltoro::cpu {
namespace {

// Independent partial sums, so that the compiler may use vectors without changing the order of
// additions: the order is a property of the width alone.
constexpr int64_t kLanes = 16;

template <typename In>
float SumOfSquares(const In* x, int64_t width) {
  float lanes[kLanes] = {};
  int64_t d = 0;
  for (; d + kLanes <= width; d += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const float value = Widen(x[d + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int64_t lane = 0; d < width; ++d, ++lane) lanes[lane] += Widen(x[d]) * Widen(x[d]);
  for (int64_t half = kLanes / 2; half > 0; half /= 2) {
    for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
}

template <typename In, typename Out>
void NormRow(Out* out, const In* x, const float* weight, int64_t width, float eps) {
  const float mean = SumOfSquares(x, width) / static_cast<float>(width);
  const float scale = 1.0f / std::sqrt(mean + eps);
  for (int64_t d = 0; d < width; ++d) Narrow(Widen(x[d]) * scale * weight[d], out[d]);
}

void CheckNorm(const TensorView& out, const TensorView& x, const TensorView& weight) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && weight.rank == 1 && weight.dtype == DType::kF32);
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == x.dim(1) && weight.dim(0) == x.dim(1));
}

}  // namespace

void RmsNorm(const OpContext& ctx, TensorView out, TensorView x, TensorView weight, float eps) {
  CheckNorm(out, x, weight);
  WithElement(x.dtype, [&](auto in_element) {
    WithElement(out.dtype, [&](auto out_element) {
      ForRows(ctx, x.dim(0), x.dim(1), [&](int64_t t) {
        NormRow(out.row<decltype(out_element)>(t), x.row<const decltype(in_element)>(t),
                weight.as<const float>(), x.dim(1), eps);
      });
    });
  });
}

void AddRmsNorm(const OpContext& ctx,
                TensorView out,
                TensorView residual,
                TensorView delta,
                TensorView weight,
                float eps) {
  CheckNorm(out, residual, weight);
  BT_CHECK(residual.dtype == DType::kF32 && delta.dtype == DType::kF32 && delta.rank == 2);
  BT_CHECK(delta.dim(0) == residual.dim(0) && delta.dim(1) == residual.dim(1));
  const int64_t width = residual.dim(1);
  WithElement(out.dtype, [&](auto out_element) {
    ForRows(ctx, residual.dim(0), width, [&](int64_t t) {
      auto* sum = residual.row<float>(t);
      const auto* added = delta.row<const float>(t);
      for (int64_t d = 0; d < width; ++d) sum[d] += added[d];
      NormRow(out.row<decltype(out_element)>(t), sum, weight.as<const float>(), width, eps);
    });
  });
}

}  // namespace baltoro::cpu
