#pragma once

// The forms in which checkpoints of the family store a matrix, and what each costs
// (model-family §3).

#include <cstdint>

#include "tensor/dtype.h"

namespace baltoro {

enum class WeightForm : uint8_t {
  kF32,
  kBf16,
  kFp8Block,    // e4m3, one f32 scale for each 128 x 128
  kInt4Group,   // 4 bits, one bf16 scale for each 32 inputs of an output
  kInt8Static,  // per output: f32 scale and i32 bias; activations scaled by constants
  kInt8,        // per output: f32 scale
  kInt4,        // 4 bits, per output: f32 scale
};

// Numbers as they are, without scales.
constexpr bool IsPlain(WeightForm form) {
  return form == WeightForm::kF32 || form == WeightForm::kBf16;
}
constexpr DType PlainType(WeightForm form) {
  return form == WeightForm::kF32 ? DType::kF32 : DType::kBf16;
}
constexpr WeightForm PlainForm(DType type) {
  return type == DType::kF32 ? WeightForm::kF32 : WeightForm::kBf16;
}

const char* WeightFormName(WeightForm form);

// Bytes of rows x columns [outputs, inputs], scales included. A cut that falls inside a group or a
// block holds its scale.
int64_t MatrixBytes(WeightForm form, int64_t outputs, int64_t inputs);

}  // namespace baltoro
