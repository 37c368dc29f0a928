#pragma once

// The checks of a picture encoder's shapes (ops/vision.h), the same for every backend.

#include <cstdint>
#include <span>

#include "base/check.h"
#include "ops/vision.h"

namespace baltoro {

inline int64_t PatchCount(std::span<const PictureGrid> grids) {
  int64_t count = 0;
  for (const PictureGrid& grid : grids) {
    BT_CHECK(grid.frames > 0 && grid.rows > 0 && grid.columns > 0);
    count += grid.patches();
  }
  return count;
}

inline void CheckMatrix(const BiasedMatrix& m, int64_t n, int64_t k) {
  BT_CHECK(m.matrix.n == n && m.matrix.k == k && m.matrix.count == 1 && IsPlain(m.matrix.form));
  BT_CHECK(m.bias.rank == 1 && m.bias.dtype == DType::kF32 && m.bias.dim(0) == n);
}

inline void CheckLayerNorm(const LayerNormWeights& norm, int64_t width) {
  for (const TensorView& each : {norm.weight, norm.bias}) {
    BT_CHECK(each.rank == 1 && each.dtype == DType::kF32 && each.dim(0) == width);
  }
}

inline void CheckStream(const TensorView& x, std::span<const PictureGrid> grids) {
  BT_CHECK(x.rank == 2 && x.dtype == DType::kF32 && x.contiguous());
  BT_CHECK(x.dim(0) == PatchCount(grids));
}

inline void CheckEmbedPatches(const EmbedPatchesArgs& args) {
  CheckStream(args.x, args.grids);
  const int64_t hidden = args.x.dim(1);
  BT_CHECK(args.pixels.rank == 2 && args.pixels.dtype == DType::kU8 && args.pixels.contiguous());
  BT_CHECK(args.pixels.dim(0) == args.x.dim(0) && args.pixels.dim(1) % 3 == 0);
  CheckMatrix(args.projection, hidden, args.pixels.dim(1));
  BT_CHECK(args.positions.rank == 3 && args.positions.dtype == DType::kF32);
  BT_CHECK(args.positions.contiguous() && args.positions.dim(2) == hidden);
  BT_CHECK(args.times.rank == 2 && args.times.dtype == DType::kF32 && args.times.contiguous());
  BT_CHECK(args.times.dim(1) == hidden);
  for (const PictureGrid& grid : args.grids) {
    BT_CHECK(grid.frames == 1 || grid.frames <= args.times.dim(0));
  }
}

inline int64_t VisionHeadSize(const VisionBlockArgs& args) {
  return 4 * args.cos.dim(1);
}

// Of a whole block, or of a part of one.
inline void CheckVisionBlock(const VisionBlockArgs& args) {
  CheckStream(args.x, args.grids);
  const int64_t hidden = args.x.dim(1), width = args.heads * VisionHeadSize(args);
  BT_CHECK(args.heads > 0 && width <= hidden);
  CheckLayerNorm(args.attention_norm, hidden);
  CheckLayerNorm(args.mlp_norm, hidden);
  CheckMatrix(args.qkv, 3 * width, hidden);
  CheckMatrix(args.o, hidden, width);
  CheckMatrix(args.up, args.up.matrix.n, hidden);
  CheckMatrix(args.down, hidden, args.up.matrix.n);
  for (const TensorView& each : {args.cos, args.sin}) {
    BT_CHECK(each.rank == 2 && each.dtype == DType::kF32 && each.contiguous());
    BT_CHECK(each.dim(1) == args.cos.dim(1));
    for (const PictureGrid& grid : args.grids) {
      BT_CHECK(grid.rows <= each.dim(0) && grid.columns <= each.dim(0));
    }
  }
}

inline void CheckProjectPictures(const ProjectPicturesArgs& args) {
  CheckStream(args.x, args.grids);
  const int64_t hidden = args.x.dim(1);
  CheckLayerNorm(args.norm, hidden);
  CheckLayerNorm(args.merge_norm, hidden);
  BT_CHECK(args.merge_rows > 0 && args.merge_columns > 0);
  const int64_t inner = args.first.matrix.n;
  CheckMatrix(args.first, inner, int64_t{args.merge_rows} * args.merge_columns * hidden);
  int64_t tokens = 0;
  for (const PictureGrid& grid : args.grids) {
    BT_CHECK(grid.rows % args.merge_rows == 0 && grid.columns % args.merge_columns == 0);
    tokens += int64_t{grid.rows / args.merge_rows} * (grid.columns / args.merge_columns);
  }
  BT_CHECK(args.out.rank == 2 && args.out.dtype == DType::kF32 && args.out.contiguous());
  BT_CHECK(args.out.dim(0) == tokens);
  CheckMatrix(args.second, args.out.dim(1), inner);
}

}  // namespace baltoro
