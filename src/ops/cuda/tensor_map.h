#pragma once

// Descriptions of tensors for the copy engine.

#include <cuda.h>

#include "base/status.h"

namespace baltoro::cuda {

// A tensor of three dimensions, the contiguous one first.
struct TensorMapShape {
  CUtensorMapDataType type;
  CUtensorMapSwizzle swizzle;
  cuuint64_t sizes[3];
  cuuint64_t strides[2];  // in bytes, of the second and third dimension; multiples of 16
  cuuint32_t box[3];
};

// `data` is 16-byte aligned. Works while a graph is captured.
Status MakeTensorMap(const TensorMapShape& shape, const void* data, CUtensorMap& map);

}  // namespace baltoro::cuda
