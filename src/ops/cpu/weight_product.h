#pragma once

// Products of rows with packed weights of any form, on one thread: what linear and the expert bank
// are built from. Rows are first made ready for the form (cut into tiles, quantised), once; then
// runs of columns are multiplied.

#include <cstdint>

#include "device/buffer.h"
#include "ops/cpu/coded_product.h"
#include "ops/cpu/product.h"
#include "ops/ops.h"

namespace baltoro::cpu {

// Rows made ready.
struct ProductInput {
  char* tiles = nullptr;
  float* scales = nullptr;  // [rows, groups]: what the sums are multiplied by; null: nothing
};

class WeightProduct {
 public:
  // For weights that are like `w` in all but their data and n.
  WeightProduct(DType act, const PackedMatrix& w);

  const Kernels& kernels() const { return kernels_; }
  // Whether a row must be whole before any of it can be made ready.
  bool quantises() const { return scale_count_ > 0; }
  int64_t panel_bytes() const { return panel_bytes_; }
  // Of one number of a row that is made ready.
  int64_t number_bytes() const { return integers_ ? 1 : SizeOf(kernels_.tile); }

  ProductInput Allocate(Arena& scratch, int64_t rows) const;
  // Rows [begin, end) of `source`. Other rows may be filled by other threads.
  void Fill(const ProductInput& to, const RowSource& source, int64_t begin, int64_t end) const;

  // Columns [begin, end) of w for `rows` rows from `row` on, a multiple of 16. `buffer` has room
  // for rows * ProductStride(begin, end) floats; returns where the result starts in it, rows
  // ProductStride() apart. `next`: the panel that is multiplied after these, if it is known.
  float* Multiply(const ProductInput& in,
                  int64_t row,
                  int64_t rows,
                  const PackedMatrix& w,
                  int64_t begin,
                  int64_t end,
                  float* buffer,
                  const void* next) const;

 private:
  const Kernels& kernels_;
  const PackedMatrix like_;
  const bool integers_;
  MultiplyCodes* const multiply_;  // null: plain
  const int64_t panel_bytes_;
  int64_t scale_count_ = 0;  // of one row
};

}  // namespace baltoro::cpu
