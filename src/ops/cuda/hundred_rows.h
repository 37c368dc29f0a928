#pragma once

// Products of hundreds of rows with bf16 matrices that cuBLASLt has no single launch for: the
// shared experts and the router of 129 to 1,024 rows, or the router alone of 129 to 512
// (MoeInputs), queries and their rope of 65 to 512 (AttentionInputs). A decode step of hundreds of
// sequences, a short prompt.
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

#include "ops/cuda/layer/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// The question: all that the choice of a form depends on.
struct HundredRowsShape {
  int64_t rows = 0, k = 0;
  int64_t n = 0, second_n = 0;  // of the matrices of one launch; second_n 0: one matrix
};
// The answer. columns 0: the shape is not for this kernel, as its blocks fill the card without
// sharing columns.
struct HundredRowsPlan {
  int columns = 0;  // rows of weights a block: 64, 96 or 128
  int parts = 0;    // blocks that share the columns: 1, 2, 4 or 8
  int tiles = 0;    // of x that a cluster has: 1; 2 of 128 columns
  // parts * tiles <= 8
};
HundredRowsPlan PlanHundredRows(const HundredRowsShape& shape);

// Whether the kernel takes x by both matrices and is the better choice: 129 to 1,024 rows.
bool HundredRowsTakes(const TensorView& out,
                      const PackedMatrix& w,
                      const TensorView& second_out,
                      const PackedMatrix& second,
                      const TensorView& x);

// out = x w^T and second_out = x second^T, as Linear.
void HundredRowsProducts(const OpContext& ctx,
                         TensorView out,
                         const PackedMatrix& w,
                         TensorView second_out,
                         const PackedMatrix& second,
                         TensorView x);

// The router's product by itself, where the shared experts' first matrix is of another form: 129 to
// 512 rows.
bool HundredRowsRouterTakes(const TensorView& logits, const PackedMatrix& w, const TensorView& x);
void HundredRowsRouter(const OpContext& ctx,
                       TensorView logits,
                       const PackedMatrix& w,
                       TensorView x);

// The product of queries, rotated: args.q from the first columns of args.qkv_a, which are
// normalised already. 65 to 512 rows.
bool HundredRowsQueryTakes(const AttentionInputArgs& args);
void HundredRowsQuery(const OpContext& ctx, const AttentionInputArgs& args);

// out = x w^T with a plan of the caller's (tests, benches), in any number of rows.
void HundredRowsProductBy(const OpContext& ctx,
                          const HundredRowsPlan& plan,
                          TensorView out,
                          TensorView x,
                          const PackedMatrix& w);

}  // namespace baltoro::cuda
