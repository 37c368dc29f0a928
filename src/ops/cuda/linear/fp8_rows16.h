#pragma once

// Products of a few rows with one kFp8Block matrix whose input is rounded to e4m3 (fp8_rows16): a
// decode step of few sequences. As bf16_rows16.h: a block asks for all of its weights before it
// waits for the kernel ahead. Rows whose codes are known (Beside::rounded) it takes so, others
// each block rounds itself, without a launch for it.
//
// Floor: the bytes of the matrix over the card's read bandwidth, less what is read before the wait.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/choose/fp8_rows16.h"
#include "ops/cuda/fused_args.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// out = x w^T, as Linear. `codes`: of x, where the plan reads them.
void Fp8Rows16Product(const OpContext& ctx,
                      const Fp8Rows16Plan& plan,
                      TensorView out,
                      TensorView x,
                      const PackedMatrix& w,
                      const QuantisedRows& codes);

// out = (silu(gate) * up) w^T where each row of `x` is gate, then up, in one launch; as Swiglu and
// Linear.
void Fp8Rows16Gated(const OpContext& ctx,
                    const Fp8Rows16Plan& plan,
                    TensorView out,
                    TensorView x,
                    const PackedMatrix& w);

// AttentionInputs with its `q`, in one launch. The low-rank query stays as it was.
// (fp8_rows16_inputs.cu)
void Fp8QueryProduct(const OpContext& ctx,
                     const Fp8Rows16Plan& plan,
                     const AttentionInputArgs& args);

// The two products of MoeInputs in one launch.
void Fp8RouterProducts(const OpContext& ctx, const Fp8Rows16Plan& plan, const MoeInputArgs& args);

}  // namespace baltoro::cuda
