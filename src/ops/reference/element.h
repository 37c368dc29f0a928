#pragma once

// One element of a bf16 or f32 array, as a float.

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

}  // namespace baltoro::reference
