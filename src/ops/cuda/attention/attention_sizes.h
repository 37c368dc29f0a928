#pragma once

// Sizes of the kernels of attention, without CUDA: for the kernels and for who chooses among them.

#include <cstdint>

#include "ops/cuda/attention/decode/mla_decode_limits.h"

namespace baltoro::cuda {

inline constexpr int kAttentionNope = kGpuNope;
inline constexpr int kAttentionRope = kGpuRope;
inline constexpr int kAttentionValue = kGpuValue;

// A head's product (attention_products.cu) with all of its sum's dimension in shared memory.
// Bytes from one row to the next: 8 rows of 16 bytes touch all banks.
constexpr int HeadProductPitch(int depth) {
  return depth * 2 + 16;
}
constexpr int HeadProductBytes(int depth, int rows, int columns) {
  return (rows + columns) * HeadProductPitch(depth);
}

// Value columns of a block that adds up pieces and multiplies at once (mla_merge_values.cu,
// mla_merge_rows.cu), and the pieces of a row that the former has room for.
inline constexpr int kMergedColumns = 32;
inline constexpr int kMergedPiecesMax = 32 * 8;

// Rows of heads that a block of mla_decode_merge.cu adds up at a time.
inline constexpr int kMergeGroups = 4;

inline constexpr int kPrefillRows = 128;  // query tokens of a tile
inline constexpr int kPrefillKeys = 128;  // keys taken at a time; passes begin at multiples
// Blocks of attention_merge.cu that share a tile's rows.
inline constexpr int kPrefillMergeBlocks = 4;

// The general decode kernel (mla_decode_kernel.cu).
namespace mla {

inline constexpr int kTokens = kMlaBlockTokens;
inline constexpr int kTileBytes = 64 * 64 * 2;                   // 64 tokens, 64 columns
inline constexpr int kStageBytes = kMlaWidth / 64 * kTileBytes;  // 9 tiles

// Shared memory, after alignment to 1024: Q (9 tiles of tile_rows rows), 2 stages, P, then:
struct Small {
  uint64_t full_early[2];  // stage s: the rope tile and the tiles of warpgroup s
  uint64_t full_late[2];   // the tiles of the other warpgroup
  uint64_t empty_early[2];
  uint64_t empty_late[2];
  uint64_t full_p[2];  // the P of warpgroup w is in shared memory
  uint64_t full_q;
  uint64_t empty_q;
  // By turns: pieces with an even number, pieces with an odd one.
  uint64_t full_sums[2][2];  // of warpgroup w
  float reference[64];       // of the P in shared memory
  float sums[2][2][64];
};

constexpr int SharedBytes(int tile_rows) {
  // A tile of fewer than 64 rows is read as one of 64: what follows it must be there.
  return 1024 + kMlaWidth / 64 * tile_rows * 128 + 2 * kStageBytes + kTileBytes +
         static_cast<int>(sizeof(Small));
}

}  // namespace mla
}  // namespace baltoro::cuda
