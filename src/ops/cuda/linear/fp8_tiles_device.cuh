#pragma once

// Parts of the FP8 products in tiles (fp8_tiles.cu): the ring in shared memory, which pieces a
// block takes, the copies that fill the ring.

#include <algorithm>

#include "ops/cuda/choose/fp8_tiles_layout.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda::fp8_tiles {

struct TileParams {
  const char* scales;  // of the first matrix
  int64_t slot_bytes;
  int32_t n, half, steps, strips;
  const char* x;
  int64_t x_row_bytes;
  const float* x_scales;
  void* out;
  float* out_scales;
  int64_t out_stride;
  const MoeTile* tiles;
  const int32_t* num_tiles;
  const int32_t* order;
  int32_t top_k;
  bool gather, scatter, pair, out_f32;
  bool once;                // weights are read by one block or pair alone
  bool early_inputs;        // of single blocks: entries and rows are read before the wait
  bool early_weights;       // of pairs: weights are asked for before it
  int32_t rows, tile_rows;  // of a product without tiles
  int32_t parts;            // that share the columns; 1, or `out` holds as many results
  // Pieces taken behind each block's first; null, and where `pair`: every grid-th is a block's.
  uint32_t* dealt;
  const float* route_weights;
};

struct Ring {
  uint32_t operands, scales, full, empty;
  int stage = 0, scale_stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
    if (++scale_stage == kScaleStages) scale_stage = 0;
  }
  __device__ __forceinline__ uint32_t Weights() const { return operands + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t Input() const { return Weights() + kWeightBytes; }
  __device__ __forceinline__ uint32_t Scales() const { return scales + scale_stage * kScaleBytes; }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

__device__ __forceinline__ MoeTile LoadTile(const TileParams& p, int at) {
  if (p.tiles == nullptr) {
    return {0, at * p.tile_rows, min(p.tile_rows, p.rows - at * p.tile_rows), 0};
  }
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + at);
  return {raw.x, raw.y, raw.z, 0};
}

// The pieces of a block: of all tiles and strips a share. The two blocks of a pair take
// neighbouring tiles and the same strip; where both are of one matrix, each fetches half of its
// rows for both.
struct Pieces {
  int unit, units, step, rank, tiles, strips, part_units;
  __device__ __forceinline__ Pieces(const TileParams& p) {
    tiles = p.tiles == nullptr ? (p.rows + p.tile_rows - 1) / p.tile_rows : __ldcg(p.num_tiles);
    strips = p.strips;
    const int blocks = p.pair ? 2 : 1;
    rank = static_cast<int>(blockIdx.x) % blocks;
    unit = static_cast<int>(blockIdx.x) / blocks;
    step = static_cast<int>(gridDim.x) / blocks;
    part_units = (tiles + blocks - 1) / blocks * strips;
    units = part_units * p.parts;
  }
  __device__ __forceinline__ bool Done() const { return unit >= units; }
  __device__ __forceinline__ void Next() { unit += step; }
  __device__ __forceinline__ int Strip() const { return unit % part_units % strips; }
  __device__ __forceinline__ int First(const TileParams& p) const {
    return unit % part_units / strips * (p.pair ? 2 : 1);
  }
  __device__ __forceinline__ int Part() const { return unit / part_units; }
  // Of this part: its first step, or that after its last.
  __device__ __forceinline__ int Step(const TileParams& p, int further) const {
    return p.steps * (Part() + further) / p.parts;
  }
};

// The pieces of a block whose next one is whichever nobody has taken yet: multiprocessors read at
// different rates. One producer tells the others of it, `kDealtSlots` at most ahead of them.
constexpr int kDealtSlots = 8;
static_assert(kDealtSlots > kStages + 2);

struct Dealt {
  int32_t unit[kDealtSlots];
  uint64_t told[kDealtSlots];
};

// By one thread, once it has asked for all of the piece before.
__device__ __forceinline__ void TellNext(Dealt& dealt, int number, int unit) {
  dealt.unit[number % kDealtSlots] = unit;
  BarrierArrive(SharedAddress(&dealt.told[number % kDealtSlots]));
}

// From piece `number` of the block to the next one.
__device__ __forceinline__ void NextPiece(const TileParams& p,
                                          Dealt& dealt,
                                          Pieces& pieces,
                                          int& number) {
  if (p.dealt == nullptr) return pieces.Next();
  const int slot = number % kDealtSlots;
  BarrierWait(SharedAddress(&dealt.told[slot]), number / kDealtSlots & 1);
  pieces.unit = *const_cast<volatile int32_t*>(&dealt.unit[slot]);
  ++number;
}

struct PairedTile {
  MoeTile tile;
  bool shared;  // with the other block
  bool again;   // the other block's: there is none for this one
};

__device__ __forceinline__ PairedTile TileOf(const TileParams& p, const Pieces& pieces) {
  const int first = pieces.First(p);
  const MoeTile one = LoadTile(p, first);
  if (!p.pair) return {one, false, false};
  if (first + 1 >= pieces.tiles) return {one, true, pieces.rank == 1};
  const MoeTile two = LoadTile(p, first + 1);
  return {pieces.rank == 0 ? one : two, one.slot == two.slot, false};
}

__device__ __forceinline__ uint64_t NormalPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// To the blocks of the cluster whose bits are set.
__device__ __forceinline__ void CopyBoxToPair(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, int z, int blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>(blocks))
      : "memory");
}

__device__ __forceinline__ void CopyBoxToBoth(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, int z, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "h"(static_cast<uint16_t>(3)), "l"(policy)
      : "memory");
}

// Only reads of shared memory go before: no fence, which would wait for the whole card.
__device__ __forceinline__ void ArriveAtOther(uint32_t barrier, int other) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n"
      "}\n" ::"r"(barrier),
      "r"(other)
      : "memory");
}

__device__ __forceinline__ void ClusterBarrier() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ __forceinline__ void Copy4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}

}  // namespace baltoro::cuda::fp8_tiles
