#pragma once

// Products of 9 to 128 rows with bf16 matrices: a decode step of tens of sequences (Linear,
// MoeInputs, AttentionInputs).
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

#include "ops/cuda/layer/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Fewer rows are for few_rows.h.
inline constexpr int kTensRowsMin = 9;

// The question: all that the choice of a form depends on.
struct TensRowsShape {
  int64_t rows = 0, k = 0;
  int64_t n = 0, second_n = 0;  // of the matrices of one launch; second_n 0: one matrix
  bool rotates = false;
};
// The answer. groups 0: the shape is not for this kernel.
struct TensRowsPlan {
  int groups = 0;  // of 64 rows of weights a block: 1 to 3 (3: up to 64 rows of x, not rotated)
  int tile = 0;    // rows of x a block: 32, 64 or 128
  int split = 0;   // blocks that share the columns: 1, 2, 4 or 8
  // Rows of weights of a block: an even number, up to groups * 64; 0: that.
  int strip_rows = 0;
  // Stages of a block's rings, 64 columns each, of weights and of x.
  int stages = 0, inputs = 0;
};
TensRowsPlan PlanTensRows(const TensRowsShape& shape);

// Gives a plan without them its rings.
void FitTensRowsRings(const TensRowsShape& shape, TensRowsPlan& plan);

// Whether the kernel takes x by w into out and is the better choice: up to 64 rows.
bool TensRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);
// Both in one launch: up to 128 rows.
bool TensRowsTakes(const TensorView& out,
                   const PackedMatrix& w,
                   const TensorView& second_out,
                   const PackedMatrix& second,
                   const TensorView& x);

// out = x w^T, as Linear.
void TensRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);
void TensRowsProducts(const OpContext& ctx,
                      TensorView out,
                      const PackedMatrix& w,
                      TensorView second_out,
                      const PackedMatrix& second,
                      TensorView x);

// The product of queries, rotated: args.q from the first columns of args.qkv_a, which are
// normalised already. Up to 64 rows.
bool TensRowsQueryTakes(const AttentionInputArgs& args);
void TensRowsQuery(const OpContext& ctx, const AttentionInputArgs& args);

// With a plan of the caller's (tests), rings and all; the arguments must be such as are taken, in
// any number of rows.
void TensRowsProductBy(const OpContext& ctx,
                       const TensRowsPlan& plan,
                       TensorView out,
                       TensorView x,
                       const PackedMatrix& w);

}  // namespace baltoro::cuda
