#pragma once

// Plumbing of the small operations: one body for bf16 and f32, and rows dealt to threads.

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "ops/cpu/cpu_ops.h"
#include "tensor/dtype.h"

namespace baltoro::cpu {

inline float Widen(float x) {
  return x;
}
inline float Widen(Bf16 x) {
  return ToFloat(x);
}
inline void Narrow(float x, float& out) {
  out = x;
}
inline void Narrow(float x, Bf16& out) {
  out = ToBf16(x);
}

// Calls body(Element{}) with the C++ type of `type`, which is bf16 or f32.
template <typename Body>
void WithElement(DType type, const Body& body) {
  if (type == DType::kF32) return body(float{});
  BT_CHECK(type == DType::kBf16);
  body(Bf16{});
}

// Calls body(row) for each of `rows` rows of about `width` elements, in pieces large enough to be
// worth handing to a thread.
template <typename Body>
void ForRows(const OpContext& ctx, int64_t rows, int64_t width, const Body& body) {
  if (rows == 0) return;
  constexpr int64_t kElementsMin = 8192;
  const int64_t step = std::max<int64_t>(1, kElementsMin / std::max<int64_t>(1, width));
  ParallelFor(ctx, (rows + step - 1) / step, [&](int64_t piece, int) {
    const int64_t end = std::min(rows, (piece + 1) * step);
    for (int64_t row = piece * step; row < end; ++row) body(row);
  });
}

}  // namespace baltoro::cpu
