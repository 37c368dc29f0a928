#pragma once

// Attention of a picture's patches to all patches of their picture, over pictures of mixed sizes
// that lie one after the other.
//
// Floor: 4 n^2 H FLOPs for a picture of n patches over the rate of products, or h n^2 exponentials
// over 16 for each multiprocessor and clock, whichever takes longer: at a head size of 72 the
// products, by little.

#include <cstdint>

#include "ops/context.h"
#include "ops/cuda/vision/picture_places.h"
#include "ops/gpu_vision.h"
#include "tensor/tensor_view.h"

namespace baltoro::cuda {

inline constexpr int32_t kPictureQueries = 128;  // of a tile
inline constexpr int32_t kPictureHeadMax = gpu_vision::kHeadMax;

struct PictureAttentionArgs {
  TensorView out;     // [N, H] bf16, written
  TensorView qk;      // [N, 2 H] bf16: all queries, all keys, head by head, rotated
  TensorView values;  // [H, N] bf16: the values of each element of each head, a row 16-byte aligned
  TilesOnDevice tiles;  // of all pictures
  int32_t heads = 0;
};

void PictureAttention(const OpContext& ctx, const PictureAttentionArgs& args);

}  // namespace baltoro::cuda
