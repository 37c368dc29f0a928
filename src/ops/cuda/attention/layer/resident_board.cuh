#pragma once

// What the blocks of the attention half in one launch (resident_attention.cu) hand to each other:
// words of ptx/mail.cuh.

#include <cstdint>

#include "ops/cuda/attention/attention_half_sizes.h"
#include "ops/cuda/ptx/mail.cuh"

namespace baltoro::cuda::resident {

// Blocks that have rows of other matrices than the first, and of them those of one head.
inline constexpr int kOwners = 128;
inline constexpr int kHeadBlocks = kOwners / kHeads;

// Pieces of attention: two a part (mla_decode_work.cuh), then one a token for what was not cut.
inline constexpr int kWholeSlot = 2 * kBlocks;
inline constexpr int kSlots = kWholeSlot + kRows;

// Pairs of bf16 a word unless said. Pairs "for products": of each 16 columns in the order 0, 4, 1,
// 5, 2, 6, 3, 7, so that two neighbouring words are both halves of a fragment of mma.
struct alignas(256) Board {
  // Low-rank queries times the weight of their norm (with e4m3 weights as they are), then the
  // latent and the key as they are.
  uint64_t inputs[kRows][kInputs / 2];
  uint64_t squares[kRows][kQLora / 8];           // f32: of 8 columns of low-rank queries
  uint64_t q[kRows][kHeads][kHead / 2];          // the rotated part for products
  uint64_t folded[kRows][kHeads][kLatent / 2];   // for products
  uint64_t token[kRows][(kLatent + kRope) / 2];  // as cached; of an fp8 cache four codes a word
  // f32, in log2: for each block that reads it words of its own, side by side, since a line that
  // all blocks ask for again and again is slow.
  uint64_t part_lse[kOwners][kSlots];
  uint64_t part_out[kSlots][kHeads][kLatent];  // f32
  uint64_t latent[kRows][kHeads][kLatent / 2];
  uint64_t value[kRows][kHeads * kValue / 2];
  uint32_t launches[kBlocks];  // so far, counted by each block for itself
};

// Where the pair of columns 2 j and 2 j + 1 of strip `strip` of 8 columns lies "for products".
__device__ __forceinline__ int ForProducts(int strip, int j) {
  return strip / 2 * 8 + 2 * j + strip % 2;
}

}  // namespace baltoro::cuda::resident
