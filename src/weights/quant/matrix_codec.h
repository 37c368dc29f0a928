#pragma once

// From bf16 rows of a matrix to each stored form and back (the forms: weight_form.h). Matrices are
// row-major [rows, columns], an output a row. Decoding is exact: each result is the float nearest
// to the stored number times its scale, where that product is not a float itself.
//
// Encoding expects finite values. A scale of zero never comes out.

#include <cstdint>

#include "tensor/dtype.h"

namespace baltoro {

inline constexpr int64_t kFp8Block = 128;
inline constexpr int64_t kInt4Group = 32;

bool AllFinite(const Bf16* in, int64_t count);

// Rows that start at a multiple of 128 of the matrix. `scales` is [ceil(rows / 128),
// ceil(columns / 128)]: the largest magnitude of a block / 448.
void EncodeFp8Block(const Bf16* in, int64_t rows, int64_t columns, uint8_t* out, float* scales);
// Rows that start at `row` of the matrix; `scales` are those of the block row that holds it.
void DecodeFp8Block(
    const uint8_t* in, const float* scales, int64_t row, int64_t rows, int64_t columns, float* out);

// `columns` is a multiple of 32. Element i of a row lies in word i / 8, lowest nibble first, plus
// 8; `scales` is [rows, columns / 32]. Scale and rounding are those of the compressed-tensors
// library on bf16: max / 7.5, every step rounded to bf16.
void EncodeInt4Group(const Bf16* in, int64_t rows, int64_t columns, uint32_t* out, Bf16* scales);
void DecodeInt4Group(
    const uint32_t* in, const Bf16* scales, int64_t rows, int64_t columns, float* out);

// One scale a row: max / 127.
void EncodeInt8(const Bf16* in, int64_t rows, int64_t columns, int8_t* out, float* scales);
void DecodeInt8(const int8_t* in, const float* scales, int64_t rows, int64_t columns, float* out);

// `rows` is even: byte k of row pair p holds column k of row 2p in the low nibble and of row 2p + 1
// in the high one, two's complement. One scale a row: max / 7. `sums` is [rows, slices], 8 times
// the sum of the decoded row over equal slices of its columns, which some kernels want.
void EncodeInt4(const Bf16* in,
                int64_t rows,
                int64_t columns,
                int64_t slices,
                uint8_t* out,
                float* scales,
                float* sums);
// Rows that start at `row` of the matrix; `in` is the pair that holds it, `scales` its own.
void DecodeInt4(
    const uint8_t* in, const float* scales, int64_t row, int64_t rows, int64_t columns, float* out);

// A row's scale is what its sums are multiplied by after a product with activations of the scale
// `input_scale`.
void DecodeInt8Static(const int8_t* in,
                      const float* product_scales,
                      float input_scale,
                      int64_t rows,
                      int64_t columns,
                      float* out);

}  // namespace baltoro
