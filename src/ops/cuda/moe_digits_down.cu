// The down product of few rows an expert, I = 256: bound by the bytes of the weights.
//
// As the streaming form (moe_stream.cu): two blocks a multiprocessor, each with an equal share of
// the weight strips of the chosen experts, in order, eight strips at a time, which lie together and
// are one bulk copy; eight warps take one each. At the start of an expert's rows the warps split
// their middle activations into digits (moe_digits.cuh), which stay in shared memory.

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_digits.cuh"
#include "ops/cuda/moe_digits.h"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_streaming.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kIntermediate = kDigitIntermediate, kColumnTiles = kIntermediate / 128;
constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kStripBytes = kColumnTiles * kTileBytes;
constexpr int kWarps = 8;
constexpr int kThreads = 32 * (kWarps + 1);
constexpr int kStages = 4;
constexpr int kStageBytes = kWarps * kStripBytes;
// One digit of a row; 16 bytes more, so that the loads of a warp meet all banks.
constexpr int kDigitPitch = kIntermediate + 16;
constexpr int kDigitBytes = kDigitTileRows * 2 * kDigitPitch;
constexpr int kSharedBytes = kStages * kStageBytes + kDigitBytes +
                             kDigitTileRows * static_cast<int>(sizeof(float)) + kStages * 16;

struct DownParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t strips;  // of one matrix
  const MoeStart* starts;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* middle;  // [T k, 256] by sorted row
  const float* route_weights;
  __nv_bfloat16* out;  // shares
  int32_t out_stride;
  DigitConstants constants;
};

struct Shared {
  char* digits;   // [row][digit][kDigitPitch]
  float* scales;  // of the rows
  uint32_t ring, full, empty;
};

__device__ void FeedRing(
    const DownParams& p, int unit, int last, int units_per_tile, const Shared& shared) {
  const bool leader = threadIdx.x % 32 == 0;
  const uint64_t policy = ReadOncePolicy();
  RingPosition<kStages> at;
  while (unit < last) {
    const UnitRun run = NextRun(p.tiles, unit, last, units_per_tile);
    unit += run.last - run.first;
    const char* weights = p.weights + run.tile.slot * p.slot_bytes;
    for (int u = run.first; u < run.last; ++u) {
      const int bytes = min(kWarps, p.strips - u * kWarps) * kStripBytes;
      BarrierWait(shared.empty + 8 * at.stage, at.parity ^ 1);
      if (leader) {
        BarrierExpectBytes(shared.full + 8 * at.stage, bytes);
        CopyBulk(shared.ring + at.stage * kStageBytes,
                 weights + static_cast<int64_t>(u) * kStageBytes, bytes, shared.full + 8 * at.stage,
                 policy);
      }
      __syncwarp();
      at.Next();
    }
  }
}

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

// The rows of a tile as digits: a warp takes every eighth row, a lane eight columns.
__device__ __forceinline__ void SplitRows(const DownParams& p,
                                          const MoeTile& tile,
                                          const Shared& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = warp; row < tile.count; row += kWarps) {
    const __nv_bfloat16* from =
        p.middle + static_cast<int64_t>(tile.begin + row) * kIntermediate + lane * 8;
    const uint4 x = __ldcg(reinterpret_cast<const uint4*>(from));
    const DigitScale scale = ScaleOfLargest(__reduce_max_sync(~0u, LargestBits(x)));
    const Digits digits = SplitDigits(x, scale.inverse);
    char* const to =
        shared.digits + row * 2 * kDigitPitch + lane / 16 * 128 + lane % 4 * 32 + lane / 4 % 4 * 8;
    *reinterpret_cast<uint2*>(to) = digits.high;
    *reinterpret_cast<uint2*>(to + kDigitPitch) = digits.low;
    if (lane == 0) shared.scales[row] = scale.scale;
  }
}

// Units of one tile. Rows beyond its count repeat the first one.
template <int kN>
__device__ __forceinline__ void MultiplyRun(const DownParams& p,
                                            const UnitRun& run,
                                            const Shared& shared,
                                            RingPosition<kStages>& at) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  ConsumerBarrier();  // all have done with the rows before
  SplitRows(p, run.tile, shared);
  ConsumerBarrier();
  uint32_t digits[kN];  // this lane's
  int32_t entry[kN];    // where its results go; -1: nowhere
  float factor[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int column = lane / 4;
    int source = n * kSetRows + column / 2;
    if (source >= run.tile.count) source = 0;
    digits[n] =
        SharedAddress(shared.digits) + (source * 2 + column % 2) * kDigitPitch + lane % 4 * 32;
    const int result = n * kSetRows + lane % 4;
    entry[n] = -1;
    factor[n] = 0;
    if (result < run.tile.count) {
      entry[n] = __ldcg(p.order + run.tile.begin + result);
      factor[n] = shared.scales[result] * kDigitsUndo * __ldg(p.route_weights + entry[n]);
    }
  }
  for (int unit = run.first; unit < run.last; ++unit) {
    const int strip = unit * kWarps + warp;
    float sums[1][kN][2] = {};
    const uint32_t own = shared.ring + at.stage * kStageBytes + warp * kStripBytes;
    BarrierWait(shared.full + 8 * at.stage, at.parity);
    if (strip < p.strips) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        const uint32_t tile[1] = {own + c * kTileBytes};
        uint4 x[kN][2];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          x[n][0] = LoadShared4(digits[n] + c * 128);
          x[n][1] = LoadShared4(digits[n] + c * 128 + 16);
        }
        MultiplyCodes<1, kN>(sums, tile, x, lane, p.constants);
      }
    }
    hopper::FinishLoads();
    __syncwarp();
    if (lane == 0) BarrierArrive(shared.empty + 8 * at.stage);
    at.Next();
    if (strip >= p.strips) continue;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint32_t pair = Neighbours(sums[0][n][0] * factor[n], sums[0][n][1] * factor[n], lane);
      if (entry[n] < 0) continue;
      __nv_bfloat16* out = p.out + static_cast<int64_t>(entry[n]) * p.out_stride;
      *reinterpret_cast<uint32_t*>(out + NeighboursRow(strip, p.strips * 16, lane)) = pair;
    }
  }
}

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <int kN>
__device__ __noinline__ RingPosition<kStages> MultiplyLargeRun(const DownParams& p,
                                                               UnitRun run,
                                                               Shared shared,
                                                               RingPosition<kStages> at) {
  MultiplyRun<kN>(p, run, shared, at);
  return at;
}

__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    DigitsDownKernel(const __grid_constant__ DownParams p) {
  extern __shared__ __align__(128) char memory[];
  Shared shared;
  shared.ring = SharedAddress(memory);
  shared.digits = memory + kStages * kStageBytes;
  shared.scales = reinterpret_cast<float*>(shared.digits + kDigitBytes);
  shared.full = SharedAddress(shared.scales + kDigitTileRows);
  shared.empty = shared.full + 8 * kStages;
  InitRing<kStages>(shared.full, shared.empty, kWarps);
  // Weights depend on the routing alone, and the gate/up product let this kernel start only once
  // the routing was done: the ring is filled while gate/up ends.
  const bool feeder = threadIdx.x >= kWarps * 32;
  if (!feeder) WaitForEarlierKernels();
  AllowNextKernel();
  const int units_per_tile = (p.strips + kWarps - 1) / kWarps;
  const int first = MoeFirstUnit(p.starts, static_cast<int>(blockIdx.x), units_per_tile);
  const int last = MoeFirstUnit(p.starts, static_cast<int>(blockIdx.x) + 1, units_per_tile);
  if (feeder) {
    FeedRing(p, first, last, units_per_tile, shared);
    return;
  }
  RingPosition<kStages> at;
  for (int unit = first; unit < last;) {
    const UnitRun run = NextRun(p.tiles, unit, last, units_per_tile);
    unit += run.last - run.first;
    if (run.tile.count <= kSetRows) {
      MultiplyRun<1>(p, run, shared, at);
    } else if (run.tile.count <= 2 * kSetRows) {
      MultiplyRun<2>(p, run, shared, at);
    } else if (run.tile.count <= 3 * kSetRows) {
      at = MultiplyLargeRun<3>(p, run, shared, at);
    } else {
      at = MultiplyLargeRun<4>(p, run, shared, at);
    }
  }
}

}  // namespace

Status LaunchMoeDigitsDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoePlan& plan,
                           cudaStream_t stream) {
  DownParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.starts = plan.starts;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.middle = plan.middle;
  p.route_weights = args.weights;
  p.out = plan.shares;
  p.out_stride = shape.hidden;
  return LaunchMoeStreaming("MoE down by digits", DigitsDownKernel, kThreads, kSharedBytes, stream,
                            p);
}

}  // namespace baltoro::cuda
