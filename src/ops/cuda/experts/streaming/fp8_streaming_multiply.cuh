#pragma once

// What the eight warps of the streaming FP8 products (fp8_streaming.cu, which alone includes this)
// do with a run of units: strips of gate and up, which they share along the columns, or strips of
// down, one a warp.

#include "ops/cuda/experts/streaming/fp8_streaming_device.cuh"

namespace baltoro::cuda {
namespace {

// Strips of gate and up, shared by the warps along the columns.
template <int kN>
__device__ __forceinline__ void MultiplyAcross(const StreamParams& p,
                                               const WorkRun& run,
                                               float4* partials,
                                               Progress<true>& progress) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows<kN> rows(p, run, progress.ring.RunQueue(), progress.index, lane);
  const float* scales = ScalesOf(p, run);
  const int last_step = p.steps - 1;
  constexpr bool kEarly = kN <= 2;  // inputs of the next stage in flight
  Ring<true> ring = progress.ring;
  uint32_t sums = progress.sums;
  Input<kN> next;
  float2 next_scales =
      BandScales(p, scales, run.first * 8, p.half + run.first * 8, min(warp, last_step));
  if (kEarly) next.Load(p, rows, min(warp, last_step));
  for (int unit = run.first; unit < run.last; ++unit, ++sums) {
    float acc[kN][4] = {};
    for (int s = 0; s < p.stages; ++s) {
      const float2 own_scales = next_scales;
      Input<kN> own = next;
      const bool ends = s + 1 == p.stages;
      const int step = min((ends ? 0 : (s + 1) * kWarps) + warp, last_step);
      const int strip = ends ? unit + 1 : unit;
      next_scales = BandScales(p, scales, strip * 8, p.half + strip * 8, step);
      if (kEarly) {
        next.Load(p, rows, step);
      } else {
        own.Load(p, rows, min(s * kWarps + warp, last_step));
      }
      BarrierWait(ring.Full(), ring.parity);
      const uint32_t low = ring.Data() + warp * 1024;
      MultiplyTile<kN>(acc, low, low + kStageBytes / 2, own, own_scales, lane);
      Release(ring, lane);
      ring.Next();
    }
    // The warps' sums. With two buffers one barrier a strip will do: whoever adds up has done so
    // before the next strip's barrier.
    constexpr bool kTwoBuffers = 2 * kN <= kMaxColumnTiles;
    float4* buffer = partials + (kTwoBuffers ? sums % 2 * kN : 0) * kWarps * 32;
    if (!kTwoBuffers) ConsumerBarrier();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      buffer[(n * kWarps + warp) * 32 + lane] =
          make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    ConsumerBarrier();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      if (warp != (sums * kN + n) % kWarps) continue;
      float sum[4] = {};
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        const float4 v = buffer[(n * kWarps + k) * 32 + lane];
        sum[0] += v.x;
        sum[1] += v.y;
        sum[2] += v.z;
        sum[3] += v.w;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = n * 8 + lane % 4 * 2 + e;
        if (row >= run.count) continue;
        static_cast<float*>(p.out)[(run.begin + row) * p.out_stride + unit * 8 + BandRow(lane)] =
            SiluTimes(sum[e], sum[2 + e]);
      }
    }
    __syncwarp();
  }
  // The next run's first sums may go into the buffer that is being added up.
  ConsumerBarrier();
  progress.ring = ring;
  progress.sums = sums;
}

// Strips of down, one a warp. kKeep: there are two steps, and the rows stay in registers.
template <int kN, bool kKeep>
__device__ __forceinline__ void MultiplyAlone(const StreamParams& p,
                                              const WorkRun& run,
                                              Progress<false>& progress) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Ring<false> ring = progress.ring;
  const Rows<kN> rows(p, run, ring.RunQueue(), progress.index, lane);
  const float* scales = ScalesOf(p, run);
  Input<kN> kept[kKeep ? 2 : 1];
  if constexpr (kKeep) {
    if (p.x_f32) {
#pragma unroll
      for (int i = 0; i < 2; ++i) Round<kN>(p, run, min(i, p.steps - 1), lane, kept[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) kept[i].Load(p, rows, min(i, p.steps - 1));
    }
  }
  const auto first_row = [&](int unit) { return (unit * kWarps + warp) * 16; };
  int target[kN][2];
  float factor[kN][2];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = n * 8 + lane % 4 * 2 + e;
      target[n][e] = -1;
      factor[n][e] = 0;
      if (row >= run.count) continue;
      const int entry = Entry(ring.RunQueue(), progress.index, row);
      target[n][e] = p.scatter ? entry : run.begin + row;
      factor[n][e] = __ldg(p.route_weights + entry);
    }
  }
  const int band_row = BandRow(lane);
  const bool odd = band_row % 2 != 0;
  float2 next_scales = BandScales(p, scales, first_row(run.first), first_row(run.first) + 8, 0);
  for (int unit = run.first; unit < run.last; ++unit) {
    float acc[kN][4] = {};
    const auto one = [&](int step, const Input<kN>& x) {
      const float2 own_scales = next_scales;
      const bool ends = step + 1 == p.steps;
      const int row = first_row(ends ? unit + 1 : unit);
      next_scales = BandScales(p, scales, row, row + 8, ends ? 0 : step + 1);
      BarrierWait(ring.Full(), ring.parity);
      const uint32_t low = ring.Data() + warp * 2048;
      MultiplyTile<kN>(acc, low, low + 1024, x, own_scales, lane);
      Release(ring, lane);
      ring.Next();
    };
    if constexpr (kKeep) {
      one(0, kept[0]);
      if (p.steps > 1) one(1, kept[1]);
    } else {
      for (int step = 0; step < p.steps; ++step) {
        kept[0].Load(p, rows, step);
        one(step, kept[0]);
      }
    }
    const int row = first_row(unit);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int band = 0; band < 2; ++band) {
        // Two lanes with neighbouring rows take both of one token each.
        const float even_token = acc[n][2 * band] * factor[n][0];
        const float odd_token = acc[n][2 * band + 1] * factor[n][1];
        const float other = __shfl_xor_sync(~0u, odd ? even_token : odd_token, 8);
        const uint32_t pair =
            odd ? hopper::PackBf16(other, odd_token) : hopper::PackBf16(even_token, other);
        const int to = odd ? target[n][1] : target[n][0];
        const int column = row + band * 8 + band_row / 2 * 2;
        if (to < 0 || column >= p.n) continue;
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + to * p.out_stride +
                                     column) = pair;
      }
    }
    __syncwarp();
  }
  progress.ring = ring;
}

template <bool kGated, int kN>
__device__ __forceinline__ void MultiplyRun(const StreamParams& p,
                                            const WorkRun& run,
                                            float4* partials,
                                            Progress<kGated>& progress) {
  if constexpr (kGated) {
    MultiplyAcross<kN>(p, run, partials, progress);
  } else {
    if (kN <= 2 && p.steps <= 2) {
      MultiplyAlone<kN, kN <= 2>(p, run, progress);
    } else {
      MultiplyAlone<kN, false>(p, run, progress);
    }
  }
}

}  // namespace
}  // namespace baltoro::cuda
