#pragma once

// Descriptions of tensors for the copy engine.

#include <cuda.h>

#include <cstdint>

#include "base/status.h"

namespace baltoro::cuda {

// A tensor of three dimensions, or of four, the contiguous one first.
template <int kDimensions>
struct TensorMapOf {
  CUtensorMapDataType type;
  CUtensorMapSwizzle swizzle;
  cuuint64_t sizes[kDimensions];
  cuuint64_t strides[kDimensions - 1];  // in bytes, from the second one on; multiples of 16
  cuuint32_t box[kDimensions];
};
using TensorMapShape = TensorMapOf<3>;

// `data` is 16-byte aligned. Works while a graph is captured.
Status MakeTensorMap(const TensorMapOf<3>& shape, const void* data, CUtensorMap& map);
Status MakeTensorMap(const TensorMapOf<4>& shape, const void* data, CUtensorMap& map);

// Of bf16 [rows, k], a row every `row_bytes`, in boxes of `box_rows` by 64 columns (128 bytes, in
// that swizzle).
Status MakeRowsMap(const void* data,
                   int64_t rows,
                   int64_t k,
                   int64_t row_bytes,
                   int64_t box_rows,
                   CUtensorMap& map);

}  // namespace baltoro::cuda
