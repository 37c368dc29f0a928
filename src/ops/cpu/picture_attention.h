#pragma once

// Attention of a picture encoder: each patch sees all patches of its picture, none of another.

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "ops/vision.h"
#include "tensor/tensor_view.h"

namespace baltoro::cpu {

// qkv [N, 3 h d] act: queries, keys and values of each patch, head by head. What a query's head
// attends to takes the query's place, rounded to act. Scores are scaled by d^-1/2; never more than
// 64 x 32 of them exist at once on a thread.
void PictureAttention(const OpContext& ctx,
                      TensorView qkv,
                      std::span<const PictureGrid> grids,
                      int32_t heads);
int64_t PictureAttentionScratch(DType act, int64_t head_size, int threads);

}  // namespace baltoro::cpu
