#pragma once

// Products of 9 to 64 rows with one kFp8Block matrix whose input is rounded to e4m3: more rows than
// fp8_few_rows.h rounds in every block, fewer than fp8_wide.cu fills the matrix units with
// (fp8_middle.cu).

#include "ops/cuda/product.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Whether the kernel takes x by w into out, and should: form, rows, shapes, alignment; matrices of
// 3,072 columns and more whose blocks all run at once.
bool Fp8MiddleTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);
// out = x w^T, as Linear; `in`: x as QuantiseRows gives it.
void Fp8MiddleProduct(const OpContext& ctx,
                      TensorView out,
                      const QuantisedRows& in,
                      const PackedMatrix& w);

}  // namespace baltoro::cuda
