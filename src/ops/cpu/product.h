#pragma once

// Products of rows of activations with packed weights, on one thread: the piece
// from which linear, the expert bank and attention's projections are built.

#include <cstdint>

#include "ops/cpu/kernels.h"
#include "ops/cpu/panel.h"
#include "ops/ops.h"

namespace baltoro::cpu {

// Rows to be multiplied: row i is row `index[i]` of `data`, or row i without an
// index.
struct RowSource {
  const void* data = nullptr;
  DType dtype = DType::kBf16;
  int64_t stride = 0;  // in elements
  const int32_t* index = nullptr;

  const void* row(int64_t i) const {
    const int64_t at = index == nullptr ? i : index[i];
    return static_cast<const char*>(data) + at * stride * SizeOf(dtype);
  }
};

// Bytes of `rows` rows in tiles of `tile` elements.
constexpr int64_t TileBytes(DType tile, int64_t rows, int64_t k) {
  return TileElements(rows, k) * SizeOf(tile);
}

// The whole of tiles made by FillTiles at `data`, for k columns.
LeftOperand TilesAt(const void* data, DType tile, int64_t k);

// Writes rows [begin, end) of `source`, k elements each, to their places in
// `tiles`.
void FillTiles(const Kernels& kernels,
               void* tiles,
               const RowSource& source,
               int64_t begin,
               int64_t end,
               int64_t k);

// Writes f32 values [rows, count] to columns [begin, begin + count) of rows
// [row, row + rows) of tiles of k columns, rounded to `act`; with the columns
// that end the row comes its padding. `row` is a multiple of 16.
void StoreTiles(const Kernels& kernels,
                void* tiles,
                int64_t k,
                DType act,
                const float* values,
                int64_t stride,
                int64_t row,
                int64_t rows,
                int64_t begin,
                int64_t count);

// The panel in which a column lies.
const void* PanelOf(const PackedMatrix& w, int64_t column);

// Columns [begin, end) of a * W^T. `buffer` has room for rows * ProductStride()
// floats; returns where the result starts in it, rows ProductStride() apart.
// `next`: the panel that the caller multiplies after these, if it knows.
int64_t ProductStride(int64_t begin, int64_t end);
float* MultiplyColumns(const Kernels& kernels,
                       const LeftOperand& a,
                       int64_t rows,
                       const PackedMatrix& w,
                       int64_t begin,
                       int64_t end,
                       float* buffer,
                       const void* next = nullptr);

// out[i] = in[i], rounded to the type of out.
void StoreRow(const Kernels& kernels, void* out, DType type, const float* in, int64_t n);

// out[i] = in[i], widened.
void LoadRow(const Kernels& kernels, float* out, const void* in, DType type, int64_t n);

// A packed weight must match the kernels it is multiplied by.
void CheckPacked(const PackedMatrix& w);

}  // namespace baltoro::cpu
