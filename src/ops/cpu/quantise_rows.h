#pragma once

// Rows of activations as codes, for the forms whose inputs are codes (matrix.h says what each is).

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "ops/cpu/product.h"
#include "ops/ops.h"

namespace baltoro::cpu {

// Rows [begin, end) of `source`, w.k elements each, to their places in i8 tiles, and what their
// sums are multiplied by to scales[row]; the scale of a row that is not finite is NaN.
void QuantiseToInt8(const Kernels& kernels,
                    const PackedMatrix& w,
                    void* tiles,
                    float* scales,
                    const RowSource& source,
                    int64_t begin,
                    int64_t end);

// The same in e4m3, each 128 k with a scale of its own: scales[row, group]. The codes' values are
// exact in bf16 and go to plain tiles in the kernels' type.
void QuantiseToFp8(const Kernels& kernels,
                   const PackedMatrix& w,
                   void* tiles,
                   float* scales,
                   const RowSource& source,
                   int64_t begin,
                   int64_t end);

}  // namespace baltoro::cpu
