#pragma once

// What the multiplying warps of the streaming INT4 products (int4_streaming.cu, which alone
// includes this) do with a run of units: strips that they share along the columns, or a strip a
// warp.

#include "ops/cuda/experts/streaming/int4_streaming_device.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

template <typename F>
struct Progress {
  RingPosition<F::kStages> at;
  uint32_t sums = 0;  // strips added up
};

struct Shared {
  float4* partials;
  uint32_t ring, full, empty;
};

template <typename F>
__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(F::kWarps * 32) : "memory");
}

// The column tile that warp `warp` takes after `column_tile`; the first again after the last.
template <typename F>
__device__ __forceinline__ int NextColumnTile(int column_tile, int column_tiles) {
  const int next = column_tile + F::kWarps;
  return next < column_tiles ? next : static_cast<int>(threadIdx.x / 32);
}

// kTogether strips from unit `unit` on, shared by the warps along the columns. For kN 1, `x` holds
// the activations of the warp's first tile before and after.
template <typename F, int kN, int kTogether>
__device__ __forceinline__ void MultiplyAcross(const ProductParams& p,
                                               const Rows<F, kN>& rows,
                                               int unit,
                                               const Shared& shared,
                                               uint4 (&x)[kN][4],
                                               RingPosition<F::kStages>& at,
                                               uint32_t& sums) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[kTogether][kN][4] = {};
  for (int base = 0; base < p.column_tiles; base += F::kWarps) {
    const int column_tile = base + warp;
    const bool inside = column_tile < p.column_tiles;
    const int loaded = min(column_tile, p.column_tiles - 1);
    uint32_t tiles[kTogether];
    int stages[kTogether];
    if constexpr (kN == 2) rows.template Load<0, 4>(x, loaded);
#pragma unroll
    for (int s = 0; s < kTogether; ++s) {
      BarrierWait(shared.full + 8 * at.stage, at.parity);
      stages[s] = at.stage;
      tiles[s] = shared.ring + at.stage * F::kStageBytes + warp * kTileBytes;
      at.Next();
    }
    if constexpr (kN == 1) {
      uint4 next[kN][4];
      rows.template Load<0, 4>(
          next, min(NextColumnTile<F>(column_tile, p.column_tiles), p.column_tiles - 1));
      if (inside) MultiplyTiles<kTogether, kN, 0, 4>(acc, tiles, x, lane);
#pragma unroll
      for (int j = 0; j < 4; ++j) x[0][j] = next[0][j];
    } else if constexpr (kN == 2) {
      if (inside) MultiplyTiles<kTogether, kN, 0, 4>(acc, tiles, x, lane);
    } else {
      // Half the columns at a time, for want of registers.
      uint4 part[kN][2];
      rows.template Load<0, 2>(part, loaded);
      if (inside) MultiplyTiles<kTogether, kN, 0, 2>(acc, tiles, part, lane);
      rows.template Load<2, 2>(part, loaded);
      if (inside) MultiplyTiles<kTogether, kN, 2, 2>(acc, tiles, part, lane);
    }
    hopper::FinishLoads();
    __syncwarp();
    if (lane == 0) {
#pragma unroll
      for (int s = 0; s < kTogether; ++s) BarrierArrive(shared.empty + 8 * stages[s]);
    }
  }
  // The warps' sums. With two buffers one barrier a strip will do: whoever adds up has done so
  // before the next strip's barrier.
  constexpr bool kTwoBuffers = 2 * kN <= F::kPartials;
#pragma unroll
  for (int s = 0; s < kTogether; ++s, ++sums) {
    float4* buffer = shared.partials + (kTwoBuffers ? sums % 2 * kN : 0) * F::kWarps * 32;
    if (!kTwoBuffers) ConsumerBarrier<F>();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const float(&c)[4] = acc[s][n];
      buffer[(n * F::kWarps + warp) * 32 + lane] = make_float4(c[0], c[1], c[2], c[3]);
    }
    ConsumerBarrier<F>();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      if (warp != (sums * kN + n) % F::kWarps) continue;
      float sum[4] = {};
#pragma unroll 2
      for (int k = 0; k < F::kWarps; ++k) {
        const float4 v = buffer[(n * F::kWarps + k) * 32 + lane];
        sum[0] += v.x;
        sum[1] += v.y;
        sum[2] += v.z;
        sum[3] += v.w;
      }
      rows.Store(p, unit + s, n, lane, sum);
    }
  }
}

// Units first .. last - 1 of one tile, a strip a warp. kKeep: a strip is one stage, and the
// activations stay in registers for all strips.
template <typename F, int kN, bool kKeep>
__device__ __forceinline__ void MultiplyAlone(const ProductParams& p,
                                              const Rows<F, kN>& rows,
                                              int first,
                                              int last,
                                              const Shared& shared,
                                              RingPosition<F::kStages>& at) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int strips = p.strips, column_tiles = p.column_tiles;
  uint4 kept[kKeep ? F::kTilesPerStage : 1][kN][4];
  if constexpr (kKeep) {
#pragma unroll
    for (int c = 0; c < F::kTilesPerStage; ++c) rows.template Load<0, 4>(kept[c], c);
  }
  for (int unit = first; unit < last; ++unit) {
    const int strip = unit * F::kWarpsM + warp;
    float acc[1][kN][4] = {};
    int base = 0;
    do {
      const uint32_t first_tile =
          shared.ring + at.stage * F::kStageBytes + warp * F::kStripStageBytes;
      BarrierWait(shared.full + 8 * at.stage, at.parity);
#pragma unroll
      for (int c = 0; c < F::kTilesPerStage; ++c) {
        if (strip >= strips || (!kKeep && base + c >= column_tiles)) break;
        const uint32_t tile[1] = {first_tile + c * kTileBytes};
        if constexpr (kKeep) {
          MultiplyTiles<1, kN, 0, 4>(acc, tile, kept[c], lane);
        } else if constexpr (kN <= 2) {
          uint4 x[kN][4];
          rows.template Load<0, 4>(x, base + c);
          MultiplyTiles<1, kN, 0, 4>(acc, tile, x, lane);
        } else {
          uint4 x[kN][2];
          rows.template Load<0, 2>(x, base + c);
          MultiplyTiles<1, kN, 0, 2>(acc, tile, x, lane);
          rows.template Load<2, 2>(x, base + c);
          MultiplyTiles<1, kN, 2, 2>(acc, tile, x, lane);
        }
      }
      hopper::FinishLoads();
      __syncwarp();
      if (lane == 0) BarrierArrive(shared.empty + 8 * at.stage);
      at.Next();
      base += F::kTilesPerStage;
    } while (!kKeep && base < column_tiles);
    if (strip >= strips) continue;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      rows.Store(p, strip, n, lane, acc[0][n]);
    }
  }
}

template <typename F, int kN>
__device__ __forceinline__ void MultiplyRun(const ProductParams& p,
                                            const UnitRun& run,
                                            const Shared& shared,
                                            Progress<F>& progress) {
  RingPosition<F::kStages> at = progress.at;
  uint32_t sums = progress.sums;
  const Rows<F, kN> rows(p, run.tile, threadIdx.x % 32);
  if constexpr (F::kWarpsK == 1) {
    if (kN == 1 && p.column_tiles == F::kTilesPerStage) {
      MultiplyAlone<F, kN, kN == 1>(p, rows, run.first, run.last, shared, at);
    } else {
      MultiplyAlone<F, kN, false>(p, rows, run.first, run.last, shared, at);
    }
  } else {
    uint4 x[kN][4];
    if constexpr (kN == 1) {
      rows.template Load<0, 4>(x, min(static_cast<int>(threadIdx.x / 32), p.column_tiles - 1));
    }
    for (int unit = run.first; unit < run.last;) {
      const int together = StripsTogether<F>(run.last - unit);
      if (together == F::kTogether) {
        MultiplyAcross<F, kN, F::kTogether>(p, rows, unit, shared, x, at, sums);
      } else if (together == 2) {
        MultiplyAcross<F, kN, 2>(p, rows, unit, shared, x, at, sums);
      } else {
        MultiplyAcross<F, kN, 1>(p, rows, unit, shared, x, at, sums);
      }
      unit += together;
    }
    // The next run's first sums may go into the buffer that is being added up.
    ConsumerBarrier<F>();
  }
  progress.at = at;
  progress.sums = sums;
}

}  // namespace
}  // namespace baltoro::cuda
