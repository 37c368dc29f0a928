#pragma once

// The producer: one warp that has the copy engine bring queries and blocks of the cache to shared
// memory.

#include "ops/cuda/attention/decode/mla_decode_shared.cuh"
#include "ops/cuda/attention/decode/mla_decode_work.cuh"

namespace baltoro::cuda::mla {

// Of the cache in bf16: tensors [9 tiles][num_blocks * 64][64], in the swizzle of the matrix
// products. In fp8: the latent columns [4 pairs of tiles][num_blocks * 64][128] in the same
// swizzle, the rope columns [num_blocks * 64][64] as they lie. In the form of group scales: the
// latent columns likewise, the scales [num_blocks * 64][4] as they lie, the rope columns in bf16.
struct Maps {
  CUtensorMap q;       // boxes of a tile's rows, all columns
  CUtensorMap half;    // fp8: boxes of 64 tokens, 256 columns
  CUtensorMap rope;    // boxes of 64 tokens, 64 columns
  CUtensorMap scales;  // kFp8Groups: boxes of 64 tokens, 4 scales
};

// The physical blocks of a piece, loaded 32 to 64 ahead of their use.
class BlockTable {
 public:
  __device__ BlockTable(const MlaKernelArgs& args, const MlaPiece& piece)
      : table_(args.sequences.block_table + piece.sequence * args.sequences.table_stride +
               piece.begin_block + threadIdx.x % 32),
        count_(piece.end_block - piece.begin_block),
        here_(Load(0)),
        next_(Load(32)) {}

  // First row of block i of the piece, in the cache as rows. For i = 0, 1, .. in turn, by all
  // lanes.
  __device__ int Row(int i) {
    if (i % 32 == 0 && i > 0) {
      here_ = next_;
      next_ = Load(i + 32);
    }
    return __shfl_sync(0xFFFFFFFF, here_, i % 32) * kTokens;
  }

 private:
  __device__ int Load(int at) const {
    return at + static_cast<int>(threadIdx.x % 32) < count_ ? __ldg(table_ + at) : 0;
  }

  const int32_t* const table_;
  const int count_;
  int here_, next_;
};

// For keys: after the thread blocks of all tiles, at about the same time, nobody reads them in this
// layer.
__device__ __forceinline__ uint64_t LeavesFirst() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

template <MlaCacheType kType>
__device__ __forceinline__ void CopyHalf(
    const Maps& maps, uint32_t stage, uint32_t barrier, int row, int half, uint64_t policy) {
  const uint32_t to = stage + half * kHalfBytes;
  if constexpr (kType != MlaCacheType::kBf16) {
    CopyBox(to, &maps.half, barrier, 0, row, half * 2);
    if constexpr (kType == MlaCacheType::kFp8Groups) {
      CopyBox(to + kScalesInHalf, &maps.scales, barrier, 0, row, 0);
    }
  } else {
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      CopyBox(to + t * kTileBytes, &maps.rope, barrier, 0, row, half * 4 + t, policy);
    }
  }
}

template <MlaCacheType kType>
__device__ __forceinline__ void CopyRope(
    const Maps& maps, uint32_t stage, uint32_t barrier, int row, uint64_t policy) {
  const uint32_t to = stage + kRopeTile * kTileBytes;
  if constexpr (kType != MlaCacheType::kBf16) {
    CopyBox(to, &maps.rope, barrier, 0, row, 0);
  } else {
    CopyBox(to, &maps.rope, barrier, 0, row, kRopeTile, policy);
  }
}

template <MlaCacheType kType>
__device__ void Produce(const MlaKernelArgs& args, const Maps& maps, const Layout& smem, int part) {
  // Raw fp8 is half of what it will be.
  constexpr bool kRaw = kType != MlaCacheType::kBf16;
  constexpr bool kGrouped = kType == MlaCacheType::kFp8Groups;
  constexpr int kHalf = kRaw ? kHalfBytes / 2 + (kGrouped ? kTokens * 16 : 0) : kHalfBytes;
  constexpr int kRope = kRaw && !kGrouped ? kTileBytes / 2 : kTileBytes;
  const int lane = threadIdx.x % 32;
  const uint64_t policy = LeavesFirst();
  Small& small = *smem.small;
  uint32_t uses0 = 0, uses1 = 0;
  uint32_t pieces = 0;
  MlaWalker walker(args, part);
  for (MlaPiece piece; walker.Next(piece); ++pieces) {
    BlockTable table(args, piece);
    if (lane == 0) {
      hopper::Wait(SharedAddress(&small.empty_q), (pieces & 1) ^ 1);
      const uint32_t full = SharedAddress(&small.full_q);
      ArriveExpecting(full, kMlaWidth / 64 * smem.q_tile_bytes);
      CopyBox(smem.q, &maps.q, full, 0, static_cast<int>(piece.first_row), 0);
    }
    const int count = piece.end_block - piece.begin_block;
    for (int i = 0; i < count; ++i) {
      const int row = table.Row(i);
      const int s = i & 1;
      if (lane == 0) {
        const uint32_t parity = ((s == 0 ? uses0 : uses1) & 1) ^ 1;
        const uint32_t stage = smem.stage(s);
        const uint32_t early = SharedAddress(&small.full_early[s]);
        const uint32_t late = SharedAddress(&small.full_late[s]);
        hopper::Wait(SharedAddress(&small.empty_early[s]), parity);
        ArriveExpecting(early, kHalf + kRope);
        CopyRope<kType>(maps, stage, early, row, policy);
        CopyHalf<kType>(maps, stage, early, row, s, policy);
        hopper::Wait(SharedAddress(&small.empty_late[s]), parity);
        ArriveExpecting(late, kHalf);
        CopyHalf<kType>(maps, stage, late, row, 1 - s, policy);
      }
      ++(s == 0 ? uses0 : uses1);
    }
  }
}

}  // namespace baltoro::cuda::mla
