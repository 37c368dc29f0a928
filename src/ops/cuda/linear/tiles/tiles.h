#pragma once

// Products of rows with matrices in every form (product_layout.h): the one kernel family behind
// Linear and ExpertBank.
//
// Weights are the 16 rows of the matrix instruction and go from memory to registers without a
// detour, 16 bytes a load; tokens are its 8 columns. The warps of a block, and the blocks of a
// cluster, share the columns of the same 16 rows and add up at the end. Codes are exact in bf16
// (int8 forms: in s8, with exact sums in i32), scales are applied to the f32 sum of each block of
// 128 columns. Of kInt4Group the weight q * scale is rounded to bf16 first.
//
// Floor for few rows: the bytes of the matrix (of the chosen experts) over the card's read
// bandwidth.

#include <cstdint>

#include "ops/cuda/choose/tiles.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/linear/sorted_rows.h"
#include "ops/cuda/rows/quantise.h"
#include "ops/ops.h"

namespace baltoro::cuda {

struct ProductArgs {
  PackedMatrix w;
  // Rows of bf16, 16-byte aligned; for kInt8, kInt4, kInt8Static of s8 codes, and for kFp8Block
  // with quantised input of e4m3 codes in the order of product_layout.h, padded with zeros to whole
  // steps of 128 columns.
  const void* x = nullptr;
  int64_t x_stride = 0;  // elements
  // What each row's codes are multiplied by, [rows, x_scales_stride]: kFp8Block (or null) one a
  // step, kInt8 and kInt4 one, kInt8Static one (1, or NaN).
  const float* x_scales = nullptr;
  int64_t x_scales_stride = 0;
  void* out = nullptr;  // every row is written in full
  DType out_type = DType::kF32;
  int64_t out_stride = 0;
  int32_t rows = 0;   // of all tiles at most
  bool wide = false;  // for many rows; WideTilesCan

  // Experts: tiles of rows of one matrix each. Null: one matrix, all rows.
  const MoeTile* tiles = nullptr;
  const int32_t* num_tiles = nullptr;
  int32_t tiles_max = 0, tile_rows = 0;  // tile_rows 8, 16, 32 or 64; wide: 128
  const int32_t* order = nullptr;        // sorted row -> entry
  int32_t top_k = 0;
  bool gather = false;                   // input row of a sorted row: order / top_k; else itself
  bool scatter = false;                  // output row of a sorted row: order; else itself
  const float* route_weights = nullptr;  // [entries], multiplies the result; or null
};

void LaunchProduct(const ProductArgs& args, const TilesPlan& plan, const LaunchStream& stream);
// The same, asking for the plan.
void LaunchProduct(const ProductArgs& args, const LaunchStream& stream);

// y = x W^T for plain forms of any shape and alignment, slowly: for what the others refuse.
void LaunchPlainProduct(TensorView out,
                        TensorView x,
                        const PackedMatrix& w,
                        const LaunchStream& stream);

// out = x W^T through cuBLASLt, bf16 and plain rows; false where it has no algorithm for these.
bool BlasLinear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);

}  // namespace baltoro::cuda
