#pragma once

// How the CUDA backend keeps a matrix [n, k], chosen by form and shape alone. A matrix takes
// PackedBytes (cuda_ops.h), a multiple of 256. Beside INT4 groups:
//
//   plain forms   row-major, nothing between rows
//   kFp8Block     rows of e4m3 codes, row_bytes apart, zeros behind column k. In each word of four
//                 columns c the bytes are c, c+2, c+1, c+3: a shift and two masks make pairs of
//                 bf16. Then scales, f32 [ceil(n / 8), steps]: one for 8 rows by 128 columns. A
//                 block that holds a NaN code has the scale NaN.
//   kInt8,
//   kInt8Static   rows of codes, row_bytes apart, zeros behind column k; scales f32 [n]; for
//                 kInt8Static then biases i32 [n]
//   kInt4         likewise with two codes a byte. Word w of a row holds columns 8 w .. 8 w + 7: the
//                 low nibbles of its bytes the first four, the high ones the others.
//   kInt4Group    the tiles of int4_layout.h; rows and columns beyond n and k are there and
//                 count nothing
//
// A step is 128 columns.

#include <cstdint>

#include "tensor/weight_form.h"

namespace baltoro::cuda {

struct ProductLayout {
  int64_t steps = 0;      // of 128 columns, the last one padded (not in plain forms)
  int64_t row_bytes = 0;  // coded forms but kInt4Group
  int64_t scales = 0;     // offsets of the parts behind the codes
  int64_t biases = 0;
  int64_t bytes = 0;
};

inline constexpr int64_t kScaleRows = 8;  // of kFp8Block: rows of one scale

constexpr int64_t RoundUp(int64_t value, int64_t to) {
  return (value + to - 1) / to * to;
}

ProductLayout LayoutOf(WeightForm form, int64_t n, int64_t k);

}  // namespace baltoro::cuda
