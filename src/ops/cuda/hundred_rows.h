#pragma once

// Products of 65 to 512 rows with bf16 matrices (two of one launch: to 1,024): a decode step of
// hundreds of sequences, a short prompt (Linear, MoeInputs, AttentionInputs).
//
// A block has 128 rows of x, 64 to 144 rows of weights and a share of the columns. A cluster of
// blocks shares the columns; in pairs its blocks have two tiles of x with the same weights, which
// each fetches half of for both. Weights are asked for before the kernel ahead has ended. Sums of
// the shares go from one block's shared memory to another's and are added in a fixed order.
//
// Floor: the bytes of the matrix over the card's read bandwidth, or the products over its rate of
// products; what holds the kernel up between the two is shared memory, which is written once and
// read twice for each step.

#include <cstdint>

#include "ops/ops.h"

namespace baltoro::cuda {

// Fewer rows are for tens_rows.h.
inline constexpr int kHundredRowsMin = 65;

// The question: all that the choice of a form depends on.
struct HundredRowsShape {
  int64_t rows = 0, k = 0;
  int64_t n = 0, second_n = 0;  // of the matrices of one launch; second_n 0: one matrix
};
// The answer. columns 0: the shape is not for this kernel.
struct HundredRowsPlan {
  int columns = 0;  // rows of weights a block: 64, 96, 128 or 144
  int parts = 0;    // blocks that share the columns
  int tiles = 0;    // of x that a cluster has: 1 or 2
  // parts * tiles <= 8
};
HundredRowsPlan PlanHundredRows(const HundredRowsShape& shape);

// Whether the kernel takes x by w into out and is the better choice.
bool HundredRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w);
bool HundredRowsTakes(const TensorView& out,
                      const PackedMatrix& w,
                      const TensorView& second_out,
                      const PackedMatrix& second,
                      const TensorView& x);

// out = x w^T, as Linear.
void HundredRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w);
void HundredRowsProducts(const OpContext& ctx,
                         TensorView out,
                         const PackedMatrix& w,
                         TensorView second_out,
                         const PackedMatrix& second,
                         TensorView x);

// The product of queries, rotated: args.q from the first columns of args.qkv_a, which are
// normalised already.
bool HundredRowsQueryTakes(const AttentionInputArgs& args);
void HundredRowsQuery(const OpContext& ctx, const AttentionInputArgs& args);

// With a plan of the caller's (tests); the arguments must be such as are taken, in any number of
// rows.
void HundredRowsProductBy(const OpContext& ctx,
                          const HundredRowsPlan& plan,
                          TensorView out,
                          TensorView x,
                          const PackedMatrix& w);

}  // namespace baltoro::cuda
