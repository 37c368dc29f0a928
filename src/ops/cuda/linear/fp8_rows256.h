#pragma once

// Products of 9 to 256 rows with one kFp8Block matrix whose input is rounded to e4m3
// (fp8_rows256): more rows than fp8_rows16.h rounds in every block, fewer than fp8_tiles.cu fills
// the matrix units with. `in`: x as QuantiseRows gives it.

#include "ops/cuda/choose/fp8_rows256.h"
#include "ops/cuda/fused_args.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// out = x w^T, as Linear.
void Fp8Rows256Product(const OpContext& ctx,
                       const Fp8Rows256Plan& plan,
                       TensorView out,
                       const QuantisedRows& in,
                       const PackedMatrix& w);

// The product of queries, rotated: args.q from the first columns of args.qkv_a, which are
// normalised already.
void Fp8Rows256Query(const OpContext& ctx,
                     const Fp8Rows256Plan& plan,
                     const AttentionInputArgs& args,
                     const QuantisedRows& in);

// The two products of MoeInputs in one launch: the router's is of x as it is.
void Fp8Rows256Router(const OpContext& ctx,
                      const Fp8Rows256Plan& plan,
                      const MoeInputArgs& args,
                      const QuantisedRows& in);

}  // namespace baltoro::cuda
