#pragma once

// Products of 9 to 128 rows with bf16 matrices (bf16_rows128): a decode step of tens of sequences
// (Linear, MoeInputs, AttentionInputs).
//
// A block has 64 or 128 rows of weights (of up to 64 rows of x up to 192), up to 128 rows of x and
// a share of the columns; a cluster of blocks shares the columns and adds up through its shared
// memory, in a fixed order. Weights are asked for before the kernel ahead has ended, as many as the
// ring holds. A block takes no more shared memory than its share of the columns fills, up to 170
// KB, from 33 rows on 200; where there are more blocks than multiprocessors two fit on one.
//
// Floor: the bytes of the matrix over the card's read bandwidth. What blocks read from the L2, rows
// of x for every strip of weights, is as much again at 64 rows and strips of 64.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "ops/cuda/choose/bf16_rows128.h"
#include "ops/cuda/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// out = x w^T, as Linear; any number of rows, any plan with its rings.
void Bf16Rows128Product(const OpContext& ctx,
                        const Bf16Rows128Plan& plan,
                        TensorView out,
                        TensorView x,
                        const PackedMatrix& w);
void Bf16Rows128Products(const OpContext& ctx,
                         const Bf16Rows128Plan& plan,
                         TensorView out,
                         const PackedMatrix& w,
                         TensorView second_out,
                         const PackedMatrix& second,
                         TensorView x);

// The product of queries, rotated: args.q from the first columns of args.qkv_a, which are
// normalised already.
void Bf16Rows128Query(const OpContext& ctx,
                      const Bf16Rows128Plan& plan,
                      const AttentionInputArgs& args);

}  // namespace baltoro::cuda
