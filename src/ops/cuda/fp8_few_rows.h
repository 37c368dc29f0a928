#pragma once

// Products of up to 16 rows with one kFp8Block matrix whose input is rounded to e4m3: a decode step
// of few sequences. As few_rows.h: a block asks for all of its weights before it waits for the
// kernel ahead. Where that is little work, each block rounds the rows itself, without a launch for
// it.
//
// Floor: the bytes of the matrix over the card's read bandwidth, less what is read before the wait.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/ops.h"

namespace baltoro::cuda {

// Whether the kernel takes x by w into out: form, few enough rows, shapes, alignment.
bool Fp8FewRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);
// out = x w^T, as Linear.
void Fp8FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);

// The same, and logits = x router^T of bf16 weights, in one launch.
bool Fp8FewRowsRouterTakes(const TensorView& out,
                           const PackedMatrix& w,
                           const TensorView& logits,
                           const PackedMatrix& router,
                           const TensorView& x);
void Fp8FewRowsRouter(const OpContext& ctx,
                      TensorView out,
                      const PackedMatrix& w,
                      TensorView logits,
                      const PackedMatrix& router,
                      TensorView x);

// out = (silu(gate) * up) w^T where each row of `x` is gate, then up, in one launch; as Swiglu and
// Linear.
bool Fp8FewRowsGatedTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);
void Fp8FewRowsGated(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);

// AttentionInputs with its `q`, in one launch. The low-rank query stays as it was.
bool Fp8QueryTakes(const AttentionInputArgs& args);
void Fp8Query(const OpContext& ctx, const AttentionInputArgs& args);

}  // namespace baltoro::cuda
