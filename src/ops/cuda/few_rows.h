#pragma once

// Products of up to 16 rows with bf16 matrices: a decode step of few sequences.
//
// A block asks for all of its weights before it waits for the kernel ahead, so that they arrive
// while that one and those before it run; after the wait there are the rows, the products and one
// sum over the warps. Weights are the 8 columns of the matrix instruction: strips of 8 rows share
// out evenly over 132 multiprocessors, where strips of 16 need clusters. Rows are its 16 rows, half
// of them empty up to 8.
//
// Floor: the bytes of the matrix over the card's read bandwidth, less what is read before the wait.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/layer/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

inline constexpr int kFewRowsMax = 16;

// Whether the kernel takes x by w into out: few enough rows and blocks, alignment.
bool FewRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);

// out = x w^T, as Linear.
void FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);
// Both matrices in one launch; each must be taken. With `norm` x is written, normalised.
void FewRowsProducts(const OpContext& ctx,
                     TensorView out,
                     const PackedMatrix& w,
                     TensorView second_out,
                     const PackedMatrix& second,
                     TensorView x,
                     const JoinedNorm* norm = nullptr);

// AttentionInputs with its `q`, in one launch. The low-rank query stays as it was.
bool QueryProductTakes(const AttentionInputArgs& args);
void QueryProduct(const OpContext& ctx, const AttentionInputArgs& args);

}  // namespace baltoro::cuda
