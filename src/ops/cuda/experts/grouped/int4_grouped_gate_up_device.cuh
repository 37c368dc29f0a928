#pragma once

// What the gate/up kernel of many rows (int4_grouped_gate_up.cu, which alone includes this) is made
// of: its two sizes, parameters, the ring, a block's share of the pieces, and the warps that fill
// the ring.

#include <algorithm>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/one_launch/ask.cuh"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/ptx/group_multiply.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kConsumerWarps = 8;
constexpr int kProducers = 128;
constexpr int kThreads = 32 * kConsumerWarps + kProducers;
constexpr int kStrips = 2 * kConsumerWarps;  // of a piece
constexpr int kWeightBytes = kStrips * kTileBytes;
static_assert(kStrips == kBoxStrips && kWeightBytes == kBoxBytes);

// Rows of a tile and of the second operand's steps, stages, blocks of a multiprocessor, registers
// of the threads that copy and of those that multiply.
struct Many {
  static constexpr int kTileRows = kGroupedTileRows, kStep = 16, kStages = 4, kBlocks = 1;
  static constexpr int kCopying = 72, kMultiplying = 216;
};
struct Middling {
  static constexpr int kTileRows = kMiddlingTileRows, kStep = 8, kStages = 3, kBlocks = 2;
  static constexpr int kCopying = 32, kMultiplying = 104;
};
template <typename Form>
inline constexpr int kInputBytes = Form::kTileRows * 256;  // 128 columns of every row, two halves
template <typename Form>
inline constexpr int kSharedBytes = Form::kStages*(kInputBytes<Form> + kWeightBytes + 16) + 1024;

struct GateUpParams {
  CUtensorMap map;  // of the weights
  int32_t strips;
  int32_t column_tiles;
  const MoeStart* starts;  // null: tiles are dealt out, back and forth
  const int32_t* num_tiles;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* in;
  int64_t in_stride;
  __nv_bfloat16* out;
  int32_t out_stride;
  int32_t top_k;
};

template <typename Form>
struct Ring {
  uint32_t input, weights, full, empty;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == Form::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

// Rows of the matrix instruction's second operand for a tile of `count` rows.
template <typename Form>
__device__ __forceinline__ int Columns(int count) {
  return (count + Form::kStep - 1) / Form::kStep * Form::kStep;
}

// The tiles of a team's block, and its piece of each: a contiguous share, or every so many-th.
struct Share {
  int first, last, units_per_tile, tiles;
  __device__ explicit Share(const GateUpParams& p) {
    const int teams = static_cast<int>(gridDim.x) / kGroupedTeam,
              pieces = (p.strips + kStrips - 1) / kStrips;
    tiles = __ldcg(p.num_tiles);
    units_per_tile =
        (pieces + kGroupedTeam - 1) / kGroupedTeam;  // a unit is a piece for each block
    if (p.starts == nullptr) {
      first = 0;
      last = (tiles + teams - 1) / teams * units_per_tile;
      return;
    }
    const auto unit = [&](int team) {
      const int2 start = __ldcg(reinterpret_cast<const int2*>(p.starts) + team);
      return start.x * units_per_tile +
             static_cast<int>(static_cast<int64_t>(start.y) * units_per_tile >> 16);
    };
    first = unit(static_cast<int>(blockIdx.x) / kGroupedTeam);
    last = unit(static_cast<int>(blockIdx.x) / kGroupedTeam + 1);
  }
  // False where this block has no piece.
  __device__ __forceinline__ bool Get(const GateUpParams& p,
                                      int unit,
                                      MoeTile* tile,
                                      int* strip) const {
    const int team = static_cast<int>(blockIdx.x) / kGroupedTeam,
              teams = static_cast<int>(gridDim.x) / kGroupedTeam;
    int at = unit / units_per_tile;
    if (p.starts == nullptr) {
      at = at * teams + (at % 2 == 0 ? team : teams - 1 - team);
      if (at >= tiles) return false;
    }
    *strip = (unit % units_per_tile * kGroupedTeam + static_cast<int>(blockIdx.x) % kGroupedTeam) *
             kStrips;
    if (*strip >= p.strips) return false;
    const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + at);
    *tile = {raw.x, raw.y, raw.z, 0};
    return true;
  }
};

// The four producer warps: eight threads a row, rows thread / 8 and every 16th from there.
template <typename Form>
__device__ void Produce(const GateUpParams& p, const Share& share, Ring<Form> ring) {
  constexpr int kStep = kProducers / 8, kRows = (Form::kTileRows + kStep - 1) / kStep;
  const int thread = threadIdx.x - 32 * kConsumerWarps;
  const int row = thread / 8, chunk = thread % 8;
  const uint64_t policy = ReadOncePolicy();
  const uint32_t to_row = ring.input + row * 128 + ((chunk ^ (row & 7)) << 4);
  for (int unit = share.first; unit < share.last; ++unit) {
    MoeTile tile;
    int strip;
    if (!share.Get(p, unit, &tile, &strip)) continue;
    const int half_bytes = Columns<Form>(tile.count) * 128;
    const int first_row = tile.slot * p.strips + strip;  // of the map
    uint32_t source[kRows];                              // in 16 bytes
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = tile.begin + min(row + kStep * i, tile.count - 1);
      const int64_t from = __ldcg(p.order + at) / p.top_k;
      source[i] = static_cast<uint32_t>(from * p.in_stride / 8);
    }
    const char* columns = reinterpret_cast<const char*>(p.in) + chunk * 16;
    for (int c = 0; c < p.column_tiles; ++c, columns += 256) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      if (thread == 0) {
        AskForBox(&p.map, ring.weights + ring.stage * kWeightBytes, ring.Full(), c, first_row,
                  policy);
      }
      const uint32_t to = to_row + ring.stage * kInputBytes<Form>;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        const char* from = columns + static_cast<uint64_t>(source[i]) * 16;
        Copy16(to + i * kStep * 128, from);
        Copy16(to + i * kStep * 128 + half_bytes, from + 128);
      }
      // The copies tell of themselves: nobody here waits for them.
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda
