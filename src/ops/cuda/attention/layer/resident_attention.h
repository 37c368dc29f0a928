#pragma once

// The attention half of a layer, for a decode step of up to 8 tokens of a tensor rank of eight of
// Kimi K2 (7168 columns, 8 heads): from the rows of a norm to the sum with the residual, in one
// launch instead of six. Weights and cache in bf16; or, of one token, weights in e4m3 with rounded
// inputs, the row of a norm that wrote its codes (Beside::rounded), no norm joined, and a cache
// in bf16 or fp8.
//
// One block on each of 132 multiprocessors owns fixed rows of every matrix of the half. Two warps
// of it ask for all of them in turn, at once and without ever waiting for data, so that the card
// reads weights while blocks exchange their small results (ptx/mail.cuh). Lengths are read
// from the plan on the device, so that a recorded launch serves any.
//
// Floor: 51.8 MB of weights over the read bandwidth, 11.4 us at 4.55 TB/s; 26.9 MB with e4m3.

#include "ops/cuda/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// False: not taken, and nothing was queued.
bool AttentionLayer(const OpContext& ctx, const AttentionLayerArgs& args);

}  // namespace baltoro::cuda
