#pragma once

// Products of up to 16 rows with bf16 matrices (bf16_rows16): a decode step of few sequences.
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

#include "ops/cuda/choose/bf16_rows16.h"
#include "ops/cuda/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// What is folded into a product: where x comes from, and where the product goes.
struct NormsOfProduct {
  const BegunNorm* from = nullptr;
  const BegunNorm* to = nullptr;
};

// out = x w^T, as Linear.
void Bf16Rows16Product(const OpContext& ctx,
                       const Bf16Rows16Plan& plan,
                       TensorView out,
                       TensorView x,
                       const PackedMatrix& w,
                       const NormsOfProduct& norms = {});
// Both matrices in one launch. With `norm` x is written, normalised.
void Bf16Rows16Products(const OpContext& ctx,
                        const Bf16Rows16Plan& plan,
                        TensorView out,
                        const PackedMatrix& w,
                        TensorView second_out,
                        const PackedMatrix& second,
                        TensorView x,
                        const BegunNorm* norm = nullptr);

// AttentionInputs with its `q`, in one launch. The low-rank query stays as it was.
void QueryProduct(const OpContext& ctx, const Bf16Rows16Plan& plan, const AttentionInputArgs& args);

}  // namespace baltoro::cuda
