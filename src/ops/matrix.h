#pragma once

// Weights as operations read them.

#include <cstdint>

#include "tensor/tensor_view.h"
#include "tensor/weight_form.h"

namespace baltoro {

// A weight matrix [n, k] (y = x * W^T, out by in) in the layout of the backend that packed it, its
// scales beside its elements. A batch of `count` equal matrices lies one after the other,
// `bytes / count` each, so that each expert is one contiguous slab.
//
// What a product with each form computes, with x as given and sums in f32 (model-family §3):
//   kF32, kBf16   sum_k x[k] w[n, k]
//   kInt4Group    sum over groups g of 32 k: scale[n, g] * sum_k x[k] q[n, k]; x is not rounded
//   kFp8Block     sum over blocks b of 128 k: scale[n, b] * sum_k x[k] q[n, k]; with
//                 `quantise_input` x[k] is e4m3(x[k] / s[b]) and the sum is multiplied by s[b],
//                 s[b] = max(|x| of the block, 1e-4) / 448
//   kInt8, kInt4  s * scale[n] * sum_k i8(x[k] / s) q[n, k], s = max |x| of the row / 127 (a row of
//                 zeros gives zeros), i8 to nearest even; the sum is an exact integer
//   kInt8Static   scale[n] * (sum_k i8(x[k] / input_scale + input_offset) q[n, k] + bias[n]), i8
//                 clamped to [-128, 127]
struct PackedMatrix {
  const void* data = nullptr;
  WeightForm form = WeightForm::kBf16;
  int64_t n = 0;  // rows of one matrix: outputs
  int64_t k = 0;  // columns: inputs
  int64_t count = 1;
  int64_t stride_bytes = 0;                 // from one matrix to the next
  bool quantise_input = false;              // kFp8Block
  float input_scale = 1, input_offset = 0;  // kInt8Static

  PackedMatrix at(int64_t i) const {
    PackedMatrix one = *this;
    one.data = static_cast<const char*>(data) + i * stride_bytes;
    one.count = 1;
    return one;
  }
};

// Whole rows of a matrix as a checkpoint stores them (model-family §3), from which a backend packs.
struct StoredRows {
  WeightForm form = WeightForm::kBf16;
  int64_t rows = 0;
  int64_t k = 0;
  // [rows, k] f32, bf16, e4m3 bytes or i8; kInt4Group u32 [rows, k / 8], lowest nibble first, plus
  // 8; kInt4 [rows / 2, k] bytes, even row in the low nibble, two's complement.
  const void* values = nullptr;
  // kFp8Block f32 [ceil(rows / 128), ceil(k / 128)], the first block begins with the first row;
  // kInt4Group bf16 [rows, k / 32]; kInt8, kInt4, kInt8Static f32 [rows].
  const void* scales = nullptr;
  const int32_t* bias = nullptr;  // kInt8Static [rows]
};

// Plain rows [rows, k], contiguous.
inline StoredRows RowsOf(const TensorView& plain) {
  return {.form = PlainForm(plain.dtype),
          .rows = plain.dim(0),
          .k = plain.dim(1),
          .values = plain.data};
}

}  // namespace baltoro
