#pragma once

// Elements of bf16 or f32 arrays as floats, and sums of them in f64.

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "tensor/dtype.h"
#include "tensor/tensor_view.h"

namespace baltoro::reference {

inline float Load(const void* data, DType type, int64_t i) {
  if (type == DType::kF32) return static_cast<const float*>(data)[i];
  BT_CHECK(type == DType::kBf16);
  return ToFloat(static_cast<const Bf16*>(data)[i]);
}

inline void Store(void* data, DType type, int64_t i, double value) {
  const auto rounded = static_cast<float>(value);
  if (type == DType::kF32) {
    static_cast<float*>(data)[i] = rounded;
    return;
  }
  BT_CHECK(type == DType::kBf16);
  static_cast<Bf16*>(data)[i] = ToBf16(rounded);
}

inline float Load(const TensorView& x, int64_t row, int64_t column) {
  return Load(x.data, x.dtype, row * x.stride[0] + column);
}

inline void Store(const TensorView& x, int64_t row, int64_t column, double value) {
  Store(x.data, x.dtype, row * x.stride[0] + column, value);
}

// Elements [begin, begin + count).
inline std::vector<double> Widen(const void* data, DType type, int64_t begin, int64_t count) {
  std::vector<double> wide(static_cast<size_t>(count));
  if (type == DType::kF32) {
    const auto* from = static_cast<const float*>(data) + begin;
    for (int64_t i = 0; i < count; ++i) wide[i] = double{from[i]};
  } else {
    BT_CHECK(type == DType::kBf16);
    const auto* from = static_cast<const Bf16*>(data) + begin;
    for (int64_t i = 0; i < count; ++i) wide[i] = double{ToFloat(from[i])};
  }
  return wide;
}

// sum_i a[i] * b[i], in eight partial sums: a processor adds them side by side, and tests are many.
inline double Dot(const double* a, const double* b, int64_t count) {
  double sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int64_t lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (; i < count; ++i) sums[0] += a[i] * b[i];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

}  // namespace baltoro::reference
