#pragma once

// What products of queries rotate by, where they store their results.

#include <cstdint>

#include "ops/cuda/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

struct QueryRotation {
  const int32_t* positions;  // [rows]
  const float *cos, *sin;    // [table_positions, dim / 2]
  int64_t table_positions;
  int head, nope, dim;  // of a head: columns, those before the rotated ones, those
};

inline QueryRotation QueryRotationOf(const AttentionInputArgs& args) {
  return {.positions = args.positions.as<int32_t>(),
          .cos = args.rope.cos,
          .sin = args.rope.sin,
          .table_positions = args.rope.positions,
          .head = static_cast<int>(args.q.dim(2)),
          .nope = static_cast<int>(args.q.dim(2) - args.rope.dim),
          .dim = static_cast<int>(args.rope.dim)};
}

// args.q as [tokens, heads * width], as the product writes it.
inline TensorView FlatQueries(const AttentionInputArgs& args) {
  TensorView flat(args.q.data, args.q.dtype, {args.q.dim(0), args.q.dim(1) * args.q.dim(2)});
  flat.stride[0] = args.q.stride[0];
  return flat;
}

}  // namespace baltoro::cuda
