#pragma once

// What the kernel of the streaming INT4 products (int4_streaming.cu, which alone includes this) is
// made of: parameters, the two forms of the work, a block's share, the warp that fills the ring,
// and rows of x and of the result as a lane holds them.

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/grouped/int4_tile_multiply.cuh"
#include "ops/cuda/experts/streaming/int4_streaming_shared.cuh"
#include "ops/cuda/layout/int4_layout.h"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kMaxColumnTiles = kStreamingTileRows / 8;  // 8 tokens each

struct ProductParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t strips;        // 16-row strips of one matrix
  int32_t column_tiles;  // 128-column tiles of a strip
  const MoeStart* starts;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* in;  // gate/up: x by token; down: middle by sorted row
  int64_t in_stride;
  __nv_bfloat16* out;  // gate/up: middle; down: shares
  int32_t out_stride;
  int32_t top_k;
  const float* route_weights;  // down
  // Few entries (kInt4Entries): each is a tile of its own, in the order of `ids`; starts, tiles
  // and order are not read.
  const int32_t* ids;  // null: as above
  const int32_t* slot_of;
  int32_t experts, slots, entries;
};

template <bool kGateUp_,
          int kWarpsK_,
          int kWarpsM_,
          int kTilesPerStage_,
          int kStages_,
          int kTogether_>
struct Form {
  static constexpr bool kGateUp = kGateUp_;
  static constexpr int kWarpsK = kWarpsK_, kWarpsM = kWarpsM_;
  static constexpr int kTilesPerStage = kTilesPerStage_;  // per warp
  static constexpr int kStages = kStages_;
  static constexpr int kTogether = kTogether_;  // strips, where warps share them
  static_assert(kStages >= kTogether);
  static constexpr int kWarps = kWarpsK * kWarpsM;
  static_assert(kWarpsK == 1 || (kWarpsM == 1 && kTilesPerStage_ == 1));
  static constexpr int kThreads = 32 * (kWarps + 1);
  static constexpr int kStripStageBytes = kWarpsK * kTilesPerStage * kTileBytes;
  static constexpr int kStageBytes = kWarpsM * kStripStageBytes;
  static constexpr int kPartials = kMaxColumnTiles;  // of 16 x 8 sums a warp
  static constexpr int kPartialBytes =
      kWarpsK == 1 ? 0 : kWarps * kPartials * 32 * static_cast<int>(sizeof(float4));
  static constexpr int kSharedBytes = kStages * kStageBytes + kPartialBytes + kStages * 16;
};

// Measured; docs/kernels/moe.md has the others.
using GateUpForm = Form<true, 8, 1, 1, 6, 2>;
using DownForm = Form<false, 1, 8, 2, 3, 1>;

__device__ MoeTile LoadTile(const ProductParams& p, int at) {
  if (p.ids != nullptr) {
    const int id = __ldcg(p.ids + at);
    const bool known = id >= 0 && id < p.experts;
    const int slot = !known ? -1 : p.slot_of == nullptr ? id : __ldg(p.slot_of + id);
    return {slot, at, slot >= 0 && slot < p.slots ? 1 : 0, 0};
  }
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + at);
  return {raw.x, raw.y, raw.z, 0};
}

// The entry of a sorted row.
__device__ int EntryOf(const ProductParams& p, int row) {
  return p.ids != nullptr ? row : __ldcg(p.order + row);
}

// Strips in work together where `left` are left of a run.
template <typename F>
__device__ __forceinline__ int StripsTogether(int left) {
  return left >= F::kTogether ? F::kTogether : left >= 2 ? 2 : 1;
}

__device__ UnitRun NextRun(const ProductParams& p, int unit, int last, int units_per_tile) {
  const int index = unit / units_per_tile;
  const int first = unit - index * units_per_tile;
  return {LoadTile(p, index), first, min(units_per_tile, first + last - unit)};
}

__device__ int FirstUnit(const ProductParams& p, int block, int units_per_tile) {
  if (p.ids != nullptr) {
    return static_cast<int>(static_cast<int64_t>(p.entries) * units_per_tile * block / gridDim.x);
  }
  return MoeFirstUnit(p.starts, block, units_per_tile);
}

template <typename F>
__device__ void FeedRing(const ProductParams& p,
                         int unit,
                         int last,
                         int units_per_tile,
                         uint32_t ring,
                         uint32_t full,
                         uint32_t empty) {
  const int lane = threadIdx.x % 32;
  const uint64_t policy = ReadOncePolicy();
  const int strip_bytes = p.column_tiles * kTileBytes;
  RingPosition<F::kStages> at;
  while (unit < last) {
    const UnitRun run = NextRun(p, unit, last, units_per_tile);
    unit += run.last - run.first;
    if (run.tile.count == 0) continue;  // not held here
    const char* weights = p.weights + run.tile.slot * p.slot_bytes;
    for (int u = run.first; u < run.last;) {
      const int together = F::kWarpsK > 1 ? StripsTogether<F>(run.last - u) : 1;
      const int strips = min(F::kWarpsM, p.strips - u * F::kWarpsM);
      for (int done = 0; done < strip_bytes; done += F::kStripStageBytes) {
        const int bytes = min(F::kStripStageBytes, strip_bytes - done);
        for (int s = 0; s < together; ++s) {
          BarrierWait(empty + 8 * at.stage, at.parity ^ 1);
          if (lane == 0) BarrierExpectBytes(full + 8 * at.stage, bytes * strips);
          __syncwarp();
          if (lane < strips) {
            CopyBulk(
                ring + at.stage * F::kStageBytes + lane * F::kStripStageBytes,
                weights + static_cast<int64_t>((u + s) * F::kWarpsM + lane) * strip_bytes + done,
                bytes, full + 8 * at.stage, policy);
          }
          at.Next();
        }
      }
      u += together;
    }
  }
}

// The rows of a tile as one thread sees them. Rows beyond the tile's count repeat its first row:
// the columns of the matrix instruction do not mix, and theirs are not stored.
template <typename F, int kN>
struct Rows {
  const __nv_bfloat16* in[kN];  // at this thread's first column
  int32_t entry[kN][2];         // where the thread's two results of a row go; -1: nowhere
  static constexpr bool kKeepWeights = !F::kGateUp && kN <= 2;  // registers are short
  float weight[kKeepWeights ? kN : 1][2];

  __device__ __forceinline__ Rows(const ProductParams& p, const MoeTile& tile, int lane) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const int mine = n * 8 + lane / 4;
      const int row = tile.begin + (mine < tile.count ? mine : 0);
      const int64_t source = F::kGateUp ? EntryOf(p, row) / p.top_k : row;
      in[n] = p.in + source * p.in_stride + lane % 4 * 8;
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int result = n * 8 + lane % 4 * 2 + e;
        entry[n][e] = result >= tile.count ? -1
                      : F::kGateUp         ? tile.begin + result
                                           : EntryOf(p, tile.begin + result);
        if constexpr (kKeepWeights) weight[n][e] = Weight(p, entry[n][e]);
      }
    }
  }

  static __device__ __forceinline__ float Weight(const ProductParams& p, int at) {
    return at < 0 ? 0 : __ldg(p.route_weights + at) * kWidenUndo;
  }

  template <int kFirst, int kGroups>
  __device__ __forceinline__ void Load(uint4 (&x)[kN][kGroups], int column_tile) const {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j) {
        x[n][j] = LoadGlobal4(in[n] + column_tile * 128 + (kFirst + j) * 32);
      }
    }
  }

  // What one thread holds of a strip: tile rows g and g + 8, rows 2 t and 2 t + 1 of column tile n.
  __device__ __forceinline__ void Store(
      const ProductParams& p, int strip, int n, int lane, const float (&c)[4]) const {
    const int g = lane / 4;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      __nv_bfloat16* out = p.out + static_cast<int64_t>(entry[n][e]) * p.out_stride;
      if (F::kGateUp) {
        if (entry[n][e] < 0) continue;
        out[strip * 8 + g] =
            __float2bfloat16_rn(SiluTimes(c[e] * kWidenUndo, c[2 + e] * kWidenUndo));
      } else {
        const float w = kKeepWeights ? weight[kKeepWeights ? n : 0][e] : Weight(p, entry[n][e]);
        const uint32_t pair = Neighbours(c[e] * w, c[2 + e] * w, lane);
        if (entry[n][e] < 0) continue;
        *reinterpret_cast<uint32_t*>(out + NeighboursRow(strip, p.strips * 16, lane)) = pair;
      }
    }
  }
};

}  // namespace
}  // namespace baltoro::cuda
