#pragma once

// Products of hundreds of rows with bf16 matrices (bf16_rows1024) that cuBLASLt has no single
// launch for: the shared experts and the router of 129 to 1,024 rows, or the router alone of 129 to
// 512 (MoeInputs), queries and their rope of 65 to 512 (AttentionInputs). A decode step of hundreds
// of sequences, a short prompt.
//
// A block has 128 rows of x, 64 to 128 rows of weights and a share of the columns. A cluster of
// blocks shares the columns; in pairs its blocks have two tiles of x with the same weights, which
// each fetches half of for both. Weights are asked for before the kernel ahead has ended. Sums of
// the shares go from one block's shared memory to another's and are added in a fixed order.
//
// Floor: the bytes of the matrix over the card's read bandwidth, or the products over its rate of
// products; what holds the kernel up between the two is shared memory, which is written once and
// read twice for each step.
//
// Measured (H200, [896, 7168] of shared and router, us): 192 rows 13.4, 256 11.5, 512 15.8, 1,024
// 23.1; queries, [1536, 1536], of 96 rows 5.6, 128 5.5, 192 7.1, 256 6.7, 512 8.7. Of one matrix
// alone cuBLASLt is as fast or faster (docs/kernels/products.md).

#include <cstdint>

#include "ops/cuda/choose/bf16_rows1024.h"
#include "ops/cuda/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// out = x w^T, as Linear, in any number of rows.
void Bf16Rows1024Product(const OpContext& ctx,
                         const Bf16Rows1024Plan& plan,
                         TensorView out,
                         TensorView x,
                         const PackedMatrix& w);
// And second_out = x second^T.
void Bf16Rows1024Products(const OpContext& ctx,
                          const Bf16Rows1024Plan& plan,
                          TensorView out,
                          const PackedMatrix& w,
                          TensorView second_out,
                          const PackedMatrix& second,
                          TensorView x);

// The product of queries, rotated: args.q from the first columns of args.qkv_a, which are
// normalised already.
void Bf16Rows1024Query(const OpContext& ctx,
                       const Bf16Rows1024Plan& plan,
                       const AttentionInputArgs& args);

}  // namespace baltoro::cuda
