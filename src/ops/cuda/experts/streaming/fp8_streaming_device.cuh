#pragma once

// What the kernel of the streaming FP8 products (fp8_streaming.cu, which alone includes this) is
// made of: parameters, the ring in shared memory and the warp that fills it, rows of x as a lane
// holds them, and the product of a tile.

#include <cuda_fp8.h>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/streaming/int4_digits_work.cuh"
#include "ops/cuda/linear/e4m3_f16_device.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

using product::E4m3ToF16;
using product::MultiplyAddF16;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * (kWarps + 1);
constexpr int kStageBytes = kWarps * 2048;
constexpr int kMaxColumnTiles = kFp8StreamRows / 8;  // 8 tokens each
using Queue = WorkQueueOf<kFp8StreamRows>;
using Feeder = WorkFeederOf<kFp8StreamRows>;
template <bool kGated>
constexpr int kStages = kGated ? 5 : 6;
template <bool kGated>
constexpr int kPartialBytes = kGated
                                  ? kWarps* kMaxColumnTiles * 32 * static_cast<int>(sizeof(float4))
                                  : 0;
template <bool kGated>
constexpr int kSharedBytes = 1024 + kStages<kGated>*(kStageBytes + 16) + kPartialBytes<kGated> +
                             static_cast<int>(sizeof(Queue));

struct StreamParams {
  const char* scales;  // of the first matrix
  int64_t slot_bytes;
  int32_t n, half, steps;
  int32_t stages;  // of a unit
  WorkParams work;
  const char* x;
  int64_t x_row_bytes;
  const float* x_scales;
  void* out;
  int64_t out_stride;
  int32_t top_k;
  bool gather, scatter, x_f32;
  bool early_inputs;  // sorted entries are read before the wait
  const float* route_weights;
};

// Where things are in shared memory: the ring, sums of the warps, barriers, the queue of runs.
template <bool kGated>
struct Ring {
  static constexpr int kCount = kStages<kGated>;
  static constexpr int kPartialsAt = kCount * kStageBytes;
  static constexpr int kBarriersAt = kPartialsAt + kPartialBytes<kGated>;

  uint32_t memory;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Data() const { return memory + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t Full(int of) const { return memory + kBarriersAt + 8 * of; }
  __device__ __forceinline__ uint32_t Full() const { return Full(stage); }
  __device__ __forceinline__ uint32_t Empty(int of) const { return Full(of) + 8 * kCount; }
  __device__ __forceinline__ uint32_t Empty() const { return Empty(stage); }
  __device__ __forceinline__ uint32_t RunQueue() const { return Full(2 * kCount); }
};

__device__ __forceinline__ void CopyBox4(uint32_t to,
                                         const CUtensorMap* map,
                                         uint32_t barrier,
                                         uint64_t policy,
                                         int row,
                                         int step,
                                         int slot) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(step), "r"(slot), "l"(policy)
      : "memory");
}

// Stages that are left to ask for when the next piece is.
constexpr int kAskAhead = 2;

// By all lanes of its warp.
template <bool kGated>
__device__ void FeedRing(const StreamParams& p, const CUtensorMap* map, Ring<kGated> ring) {
  const bool leader = threadIdx.x % 32 == 0;
  const uint64_t policy = ReadOncePolicy();
  Feeder feeder(p.work, ring.RunQueue());
  UnitRun run;
  while (feeder.Next(run)) {
    int left = (run.last - run.first) * p.stages;
    const int ask = min(left - 1, kAskAhead);
    bool told = false;
    for (int u = run.first; u < run.last; ++u) {
      for (int s = 0; s < p.stages; ++s) {
        BarrierWait(ring.Empty(), ring.parity ^ 1);
        if (leader) {
          BarrierExpectBytes(ring.Full(), kStageBytes);
          // Rows and columns beyond the last arrive as zeros.
          if (kGated) {
            CopyBox4(ring.Data(), map, ring.Full(), policy, u * 8, s * kWarps, run.tile.slot);
            CopyBox4(ring.Data() + kStageBytes / 2, map, ring.Full(), policy, p.half + u * 8,
                     s * kWarps, run.tile.slot);
          } else {
            CopyBox4(ring.Data(), map, ring.Full(), policy, u * 16 * kWarps, s, run.tile.slot);
          }
        }
        __syncwarp();
        ring.Next();
        if (!told) feeder.Tell(run);
        told = true;
        if (--left == ask) feeder.AskAhead();
      }
    }
  }
  feeder.TellEnd();
}

// The lane's row among the eight of a band: so that the lanes that read together meet every bank
// once.
__device__ __forceinline__ int BandRow(int lane) {
  const int g = lane / 4;
  return g / 2 + g % 2 * 4;
}

__device__ __forceinline__ int Entry(uint32_t queue, uint32_t index, int row) {
  return ReadEntry<kFp8StreamRows>(queue, index, row);
}

// The rows of a tile as one thread sees them. Rows beyond the tile's count repeat its first row:
// the columns of the matrix instruction do not mix, and theirs are not stored.
template <int kN>
struct Rows {
  uint32_t in[kN];       // of this thread's first column, in 16 bytes
  int32_t first[kN][2];  // scales

  __device__ __forceinline__
  Rows(const StreamParams& p, const WorkRun& run, uint32_t queue, uint32_t index, int lane) {
    const auto source = [&](int i) {
      return p.gather ? Entry(queue, index, i) / p.top_k : run.begin + (i < run.count ? i : 0);
    };
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      in[n] = static_cast<uint32_t>(source(n * 8 + lane / 4)) *
                  static_cast<uint32_t>(p.x_row_bytes / 16) +
              lane % 4;
#pragma unroll
      for (int e = 0; e < 2; ++e) first[n][e] = source(n * 8 + lane % 4 * 2 + e) * p.steps;
    }
  }
};

// A step's codes of the rows.
template <int kN>
struct Input {
  uint4 codes[kN][2];
  float scales[kN][2];

  __device__ __forceinline__ void Load(const StreamParams& p, const Rows<kN>& rows, int step) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const char* from = p.x + static_cast<uint64_t>(rows.in[n]) * 16 + step * 128;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        codes[n][j] = __ldcg(reinterpret_cast<const uint4*>(from) + j * 4);
#pragma unroll
      for (int e = 0; e < 2; ++e) scales[n][e] = __ldcg(p.x_scales + rows.first[n][e] + step);
    }
  }
};

// Four f32 as the codes of a word.
__device__ __forceinline__ uint32_t Codes(const float4& v, float undo) {
  const uint32_t even =
      __nv_cvt_float2_to_fp8x2(make_float2(v.x * undo, v.z * undo), __NV_SATFINITE, __NV_E4M3);
  const uint32_t odd =
      __nv_cvt_float2_to_fp8x2(make_float2(v.y * undo, v.w * undo), __NV_SATFINITE, __NV_E4M3);
  return even | odd << 16;
}

// A step of rows that are still f32, rounded here: a row's 128 columns are in four lanes.
template <int kN>
__device__ __forceinline__ void Round(
    const StreamParams& p, const WorkRun& run, int step, int lane, Input<kN>& input) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int mine = n * 8 + lane / 4;
    const int row = run.begin + (mine < run.count ? mine : 0);
    const auto* from = reinterpret_cast<const float4*>(p.x + row * p.x_row_bytes +
                                                       static_cast<int64_t>(step) * 512) +
                       lane % 4 * 4;
    float4 v[8];
    float largest = 1e-4f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = __ldcg(from + i / 4 * 16 + i % 4);
      largest = fmaxf(fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y))),
                      fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
    }
    for (int d = 1; d < 4; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    const float scale = __fdiv_rn(largest, 448.0f), undo = __fdiv_rn(1.0f, scale);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      input.codes[n][j] = make_uint4(Codes(v[4 * j], undo), Codes(v[4 * j + 1], undo),
                                     Codes(v[4 * j + 2], undo), Codes(v[4 * j + 3], undo));
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      input.scales[n][e] = __shfl_sync(~0u, scale, (lane % 4 * 2 + e) * 4);
    }
  }
}

// acc += 16 rows of weights (two bands of 8, in the 128-byte swizzle) by 128 columns.
template <int kN>
__device__ __forceinline__ void MultiplyTile(
    float (&acc)[kN][4], uint32_t low, uint32_t high, const Input<kN>& x, float2 scales, int lane) {
  const int row = BandRow(lane);
  float part[kN][4] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t at = row * 128 + (((lane % 4 + 4 * j) ^ row) << 4);
    const uint4 a = LoadShared4(low + at), b = LoadShared4(high + at);
    const uint32_t words[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 first = E4m3ToF16(words[0][i]), second = E4m3ToF16(words[1][i]);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4& piece = x.codes[n][j];
        const uint2 v = E4m3ToF16(i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w);
        MultiplyAddF16(part[n], first.x, second.x, first.y, second.y, v.x, v.y);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      acc[n][e] += part[n][e] * (scales.x * x.scales[n][e]);
      acc[n][2 + e] += part[n][2 + e] * (scales.y * x.scales[n][e]);
    }
  }
}

__device__ __forceinline__ float2
BandScales(const StreamParams& p, const float* scales, int low_row, int high_row, int step) {
  const int last = (p.n - 1) / 8;
  return make_float2(
      __ldg(scales + static_cast<int64_t>(min(low_row / 8, last)) * p.steps + step),
      __ldg(scales + static_cast<int64_t>(min(high_row / 8, last)) * p.steps + step));
}

__device__ __forceinline__ const float* ScalesOf(const StreamParams& p, const WorkRun& run) {
  return reinterpret_cast<const float*>(p.scales + run.slot * p.slot_bytes);
}

// The stage may be filled again.
template <bool kGated>
__device__ __forceinline__ void Release(const Ring<kGated>& ring, int lane) {
  hopper::FinishLoads();
  __syncwarp();
  if (lane == 0) BarrierArrive(ring.Empty());
}

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

template <bool kGated>
struct Progress {
  Ring<kGated> ring;
  uint32_t sums = 0;   // strips added up
  uint32_t index = 0;  // of the run
};

}  // namespace
}  // namespace baltoro::cuda
