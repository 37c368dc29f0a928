#pragma once

// y = x W^T by all threads, with what becomes of the results left to the caller: linear stores
// them, a picture encoder adds biases and activations first.

#include <cstdint>
#include <functional>

#include "ops/cpu/weight_product.h"

namespace baltoro::cpu {

// What one item of work is.
struct ProductPlan {
  int64_t rows = 0;
  int64_t panels = 0;
};

class RowProduct {
 public:
  // Takes memory of ctx.scratch for products of up to `rows_max` rows at a time.
  RowProduct(const OpContext& ctx, DType act, const PackedMatrix& w, int64_t rows_max);
  // The bytes that it takes of plain weights like `w`, on `threads` threads.
  static int64_t ScratchBytes(DType act, const PackedMatrix& w, int64_t rows_max, int threads);

  const Kernels& kernels() const { return product_.kernels(); }

  // Columns [begin, begin + count) of the result's row `row`; `values` may be overwritten. `begin`
  // is a multiple of 32. Called on any of the threads.
  using Store = std::function<void(int64_t row, int64_t begin, int64_t count, float* values)>;
  void Run(const RowSource& x, int64_t rows, const Store& store) const;

 private:
  ProductPlan PlanOf(int64_t rows) const;

  const OpContext& ctx_;
  const PackedMatrix w_;
  const WeightProduct product_;
  const int64_t rows_max_;
  const ProductPlan plan_;  // of rows_max
  ProductInput input_;
  float* buffers_ = nullptr;  // one a thread
};

}  // namespace baltoro::cpu
