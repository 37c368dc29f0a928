#pragma once

// Products of a few rows with one kFp8Block matrix whose input is rounded to e4m3: a decode step of
// few sequences. As few_rows.h: a block asks for all of its weights before it waits for the kernel
// ahead. Rows whose codes are known (OpContext::rounded) it takes so, others each block rounds
// itself, without a launch for it.
//
// Floor: the bytes of the matrix over the card's read bandwidth, less what is read before the wait.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/layer/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Whether the kernel takes x by w into out: form, up to 8 rows and not much to round, shapes,
// alignment; not where the matrix is so large that product.h is faster.
bool Fp8FewRowsTakes(const OpContext& ctx,
                     const TensorView& out,
                     const TensorView& x,
                     const PackedMatrix& w);
// out = x w^T, as Linear.
void Fp8FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);

// out = (silu(gate) * up) w^T where each row of `x` is gate, then up, in one launch; as Swiglu and
// Linear. Up to 16 rows.
bool Fp8FewRowsGatedTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);
void Fp8FewRowsGated(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);

// AttentionInputs with its `q`, in one launch; up to 8 rows. The low-rank query stays as it was.
// (fp8_few_joined.cu)
bool Fp8QueryTakes(const AttentionInputArgs& args);
void Fp8QueryProduct(const OpContext& ctx, const AttentionInputArgs& args);

// The two products of MoeInputs in one launch, where a block of the first has one strip.
bool Fp8RouterTakes(const OpContext& ctx, const MoeInputArgs& args);
void Fp8RouterProducts(const OpContext& ctx, const MoeInputArgs& args);

}  // namespace baltoro::cuda
