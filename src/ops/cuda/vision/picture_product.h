#pragma once

// The products of a picture encoder: many rows in bf16, with what follows each product done to its
// sums in registers, in f32.
//
// Floor: 2 rows n k FLOPs over the rate of products.

#include <cstdint>

#include "ops/context.h"
#include "tensor/tensor_view.h"

namespace baltoro::cuda {

enum class ProductEnd : uint8_t {
  kStore,     // f32
  kAdd,       // f32, added to what is there
  kGeluTanh,  // bf16
  kGeluErf,   // bf16
  kRotate,    // bf16; pairs of columns turned by the place of the row's patch
  kTurned,    // bf16; the bias is one a row, not a column
};

// Of kRotate: elements 4 i and 4 i + 1 of a head are turned by the column of the patch, 4 i + 2 and
// 4 i + 3 by its row.
struct PictureRotation {
  const uint32_t* places = nullptr;            // [rows]: row << 16 | column
  const float *cos = nullptr, *sin = nullptr;  // [side, head / 4]
  int32_t head = 0;                            // its width
};

struct PictureProductArgs {
  // [rows, n], as ProductEnd says, written; fastest where rows are aligned to four elements.
  TensorView out;
  TensorView x;     // [rows, k] bf16, rows 16-byte aligned
  TensorView w;     // [n, k] bf16, likewise
  TensorView bias;  // [n] f32; of kTurned [rows]
  ProductEnd end = ProductEnd::kStore;
  PictureRotation rotation = {};
};

// out = end(x w^T + bias)
void PictureProduct(const OpContext& ctx, const PictureProductArgs& args);

}  // namespace baltoro::cuda
