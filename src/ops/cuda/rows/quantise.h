#pragma once

// Rows rounded to what coded matrices multiply with.

#include <cstdint>

#include "ops/cuda/choose/quantise.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// What rows are quantised from: `x` bf16 [rows, k], or silu(x[i]) * x[k + i] of f32 [rows, 2 k], or
// f32 [rows, k] (kFp8Block alone).
struct RowSource {
  const void* x = nullptr;
  int64_t stride = 0;  // elements
  bool gated = false, f32 = false;
  int64_t rows = 0, k = 0;
};

// The input as `w` takes it: what a RowSource becomes, in scratch.
struct QuantisedRows {
  const void* x = nullptr;  // codes, as ProductArgs (linear/tiles/tiles.h) takes them
  int64_t x_stride = 0;
  const float* x_scales = nullptr;
  int64_t x_scales_stride = 0;
};
QuantisedRows QuantiseRows(const OpContext& ctx,
                           const RowSource& source,
                           const PackedMatrix& w,
                           const QuantisePlan& plan);
// The same, asking for the plan.
QuantisedRows QuantiseRows(const OpContext& ctx, const RowSource& source, const PackedMatrix& w);
// The input of `w` as Swiglu of the bf16 rows x makes it, in one launch.
QuantisedRows SwigluQuantise(const OpContext& ctx, TensorView x, const PackedMatrix& w);
// What the context has of these rows, which are bf16, for a matrix of this form; without `x`:
// nothing.
QuantisedRows KnownRows(const OpContext& ctx,
                        const void* x,
                        int64_t stride,
                        int64_t rows,
                        int64_t k,
                        WeightForm form = WeightForm::kFp8Block);
// Whether these rows are there as codes alone (Beside::gathered).
bool KnownAsCodesAlone(const OpContext& ctx, const void* x);

}  // namespace baltoro::cuda
