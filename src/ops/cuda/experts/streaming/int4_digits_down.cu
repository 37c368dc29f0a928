// The down product of few rows an expert, I = 256: bound by the bytes of the weights.
//
// As the streaming form (int4_streaming.cu): two blocks a multiprocessor, among which the weight
// strips of the chosen experts are dealt out (int4_digits_work.cuh), eight strips at a time, which
// lie together and are one bulk copy; eight warps take one each. The warps split a run's middle
// activations into digits (int4_digits.cuh), which stay in shared memory, while the run before
// ends.

#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/streaming/int4_digits.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/experts/streaming/int4_digits_work.cuh"
#include "ops/cuda/experts/streaming/int4_streaming_shared.cuh"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/ptx/hopper.cuh"

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
// Digits and scales of two runs: those of the next one are made while this one ends.
constexpr int kScalesAt = 2 * kDigitBytes;
constexpr int kQueueAt = kScalesAt + 2 * kDigitTileRows * static_cast<int>(sizeof(float));
constexpr int kBarriersAt = kQueueAt + static_cast<int>(sizeof(WorkQueue));
constexpr int kRingAt = (kBarriersAt + 16 * kStages + 127) / 128 * 128;
constexpr int kSharedBytes = kRingAt + kStages * kStageBytes;

struct DownParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t strips;               // of one matrix
  WorkParams work;              // in units of kWarps strips
  const __nv_bfloat16* middle;  // [T k, 256] by sorted row
  __nv_bfloat16* out;           // shares
  int32_t out_stride;
  DigitConstants constants;
};

struct Shared {
  uint32_t base;

  __device__ __forceinline__ uint32_t Ring() const { return base + kRingAt; }
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return base + kBarriersAt + 16 * stage;
  }
  __device__ __forceinline__ uint32_t Empty(int stage) const { return Full(stage) + 8; }
  // Of run `index`: [row][digit][kDigitPitch], in which lane / 4 is a set's row and digit.
  __device__ __forceinline__ uint32_t Digits(uint32_t index) const {
    return base + index % 2 * kDigitBytes;
  }
  __device__ __forceinline__ uint32_t Scale(uint32_t index, int row) const {
    return base + kScalesAt + (index % 2 * kDigitTileRows + row) * sizeof(float);
  }
};

// Stages that are left to ask for when the next piece is.
constexpr int kAskAhead = 2;

__device__ void FeedRing(const DownParams& p, const Shared& shared) {
  const bool leader = threadIdx.x % 32 == 0;
  const uint64_t policy = ReadOncePolicy();
  RingPosition<kStages> at;
  WorkFeeder feeder(p.work, shared.base + kQueueAt);
  UnitRun run;
  while (feeder.Next(run)) {
    const char* weights = p.weights + run.tile.slot * p.slot_bytes;
    const int ask = max(run.first, run.last - kAskAhead);
    for (int u = run.first; u < run.last; ++u) {
      const int bytes = min(kWarps, p.strips - u * kWarps) * kStripBytes;
      BarrierWait(shared.Empty(at.stage), at.parity ^ 1);
      if (leader) {
        BarrierExpectBytes(shared.Full(at.stage), bytes);
        CopyBulk(shared.Ring() + at.stage * kStageBytes,
                 weights + static_cast<int64_t>(u) * kStageBytes, bytes, shared.Full(at.stage),
                 policy);
      }
      __syncwarp();
      at.Next();
      if (u == run.first) feeder.Tell(run);
      if (u == ask) feeder.AskAhead();
    }
  }
  feeder.TellEnd();
}

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

// A run's rows as digits: a warp takes every eighth row, a lane eight columns of it.
struct OwnRows {
  static constexpr int kEach = kDigitTileRows / kWarps;
  uint4 x[kEach];

  __device__ __forceinline__ void Load(const DownParams& p, const WorkRun& run) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = warp + i * kWarps;
      if (row >= run.count) continue;
      const __nv_bfloat16* from =
          p.middle + static_cast<int64_t>(run.begin + row) * kIntermediate + lane * 8;
      x[i] = __ldcg(reinterpret_cast<const uint4*>(from));
    }
  }

  __device__ __forceinline__ void Split(const WorkRun& run, const Shared& shared, uint32_t index) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int row = warp + i * kWarps;
      if (row >= run.count) continue;
      const DigitScale scale = ScaleOfLargest(__reduce_max_sync(~0u, LargestBits(x[i])));
      const Digits digits = SplitDigits(x[i], scale.inverse);
      const uint32_t to = shared.Digits(index) + row * 2 * kDigitPitch + lane / 16 * 128 +
                          lane % 4 * 32 + lane / 4 % 4 * 8;
      StoreShared2(to, digits.high.x, digits.high.y);
      StoreShared2(to + kDigitPitch, digits.low.x, digits.low.y);
      if (lane == 0) StoreShared(shared.Scale(index, row), scale.scale);
    }
  }
};

struct Progress {
  WorkRun run;
  RingPosition<kStages> at;
  uint32_t index = 0;  // of the run
};

// The units of one run, whose digits are there, and the next run's digits. Rows beyond a tile's
// count repeat the first one.
template <int kN>
__device__ __forceinline__ void MultiplyRun(const DownParams& p,
                                            const Shared& shared,
                                            Progress& progress) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const WorkRun run = progress.run;
  // This lane's digits of the first set of rows; rows beyond the count are left from runs before.
  const uint32_t digits = shared.Digits(progress.index) + lane / 4 * kDigitPitch + lane % 4 * 32;
  const uint32_t words = shared.Ring() + warp * kStripBytes + lane * 16;
  const uint32_t scales = shared.Ring() + warp * kStripBytes + 1024 + lane / 4 * 16;
  int strip = run.first * kWarps + warp;
  bool there[kN];      // the row of this thread's results
  uint32_t place[kN];  // where they go
  float factor[kN];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const uint32_t queue = shared.base + kQueueAt;
    const int result = n * kSetRows + lane % 4;
    there[n] = result < run.count;
    place[n] = static_cast<uint32_t>(ReadEntry(queue, progress.index, result)) *
                   static_cast<uint32_t>(p.out_stride) +
               static_cast<uint32_t>(NeighboursRow(strip, p.strips * 16, lane));
    factor[n] = LoadShared(shared.Scale(progress.index, result)) * kDigitsUndo *
                ReadWeight(queue, progress.index, result);
  }
  RingPosition<kStages>& at = progress.at;
  for (int left = run.last - run.first; left > 0; --left) {
    float sums[1][kN][2] = {};
    OwnRows next;
    if (left == 1) {
      progress.run = ReadRun(shared.base + kQueueAt, progress.index + 1);
      next.Load(p, progress.run);
    }
    BarrierWait(shared.Full(at.stage), at.parity);
    const bool inside = strip < p.strips;
    if (inside) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
        const uint32_t tile_words[1] = {words + at.stage * kStageBytes + c * kTileBytes};
        const uint32_t tile_scales[1] = {scales + at.stage * kStageBytes + c * kTileBytes};
        uint4 x[kN][2];
#pragma unroll
        for (int n = 0; n < kN; ++n) {
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            x[n][i] = LoadShared4(digits + n * 2 * kSetRows * kDigitPitch + c * 128 + i * 16);
          }
        }
        MultiplyCodes<1, kN>(sums, tile_words, tile_scales, x, p.constants, [](int) {});
      }
    }
    hopper::FinishLoads();
    __syncwarp();
    if (FirstLane()) BarrierArrive(shared.Empty(at.stage));
    at.Next();
    strip += kWarps;
    if (left == 1) next.Split(progress.run, shared, progress.index + 1);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const uint32_t pair = Neighbours(sums[0][n][0] * factor[n], sums[0][n][1] * factor[n], lane);
      if (there[n] && inside) *reinterpret_cast<uint32_t*>(p.out + place[n]) = pair;
      place[n] += 8 * kWarps;  // rows of each half
    }
  }
  ++progress.index;
  ConsumerBarrier();  // the next run's digits are there, and nobody reads this one's
}

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <int kN>
__device__ __noinline__ Progress MultiplyLargeRun(const DownParams& p,
                                                  Shared shared,
                                                  Progress progress) {
  MultiplyRun<kN>(p, shared, progress);
  return progress;
}

__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    DigitsDownKernel(const __grid_constant__ DownParams p) {
  extern __shared__ __align__(128) char memory[];
  Shared shared;
  shared.base = SharedAddress(memory);
  InitQueue(shared.base + kQueueAt);
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      BarrierInit(shared.Full(i), 1);
      BarrierInit(shared.Empty(i), kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  // Weights depend on the routing alone, and the gate/up product let this kernel start only once
  // the routing was done: the ring is filled while gate/up ends.
  const bool feeder = threadIdx.x >= kWarps * 32;
  if (!feeder) WaitForEarlierKernels();
  AllowNextKernel();
  if (feeder) {
    FeedRing(p, shared);
    return;
  }
  Progress progress;
  progress.run = ReadRun(shared.base + kQueueAt, 0);
  OwnRows first;
  first.Load(p, progress.run);
  first.Split(progress.run, shared, 0);
  ConsumerBarrier();
  while (progress.run.count > 0) {
    if (progress.run.count <= kSetRows) {
      MultiplyRun<1>(p, shared, progress);
    } else if (progress.run.count <= 2 * kSetRows) {
      MultiplyRun<2>(p, shared, progress);
    } else if (progress.run.count <= 3 * kSetRows) {
      progress = MultiplyLargeRun<3>(p, shared, progress);
    } else {
      progress = MultiplyLargeRun<4>(p, shared, progress);
    }
  }
}

}  // namespace

Status LaunchMoeDigitsDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoeWorkspace& space,
                           const ExpertsPlan& plan,
                           const LaunchStream& stream) {
  DownParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.work = {.starts = space.starts,
            .tiles = space.tiles,
            .num_tiles = space.num_tiles,
            .order = space.order,
            .weights = args.weights,
            .taken = space.counters + 1,
            .units = (p.strips + kWarps - 1) / kWarps,
            .piece = kDigitDownPiece,
            .align = 2};
  p.middle = space.middle;
  p.out = space.shares;
  p.out_stride = shape.hidden;
  // Its feeders take pieces of the work at once; whether entries are sorted by then, the order of
  // launches checks.
  const Int4BankRegions of{shape, args, space};
  const Region taken = CounterOf(space.counters, 1);
  LaunchNote note = "MoE down by digits";
  note.writes = {of.shares(), taken};
  note.reads = {of.sorted(), of.middle(), of.weights(), taken};
  note.early_reads = {of.sorted(), of.weights()};
  note.early_writes = taken;
  return LaunchMoeStreaming(note, DigitsDownKernel, plan.blocks, kThreads, kSharedBytes, stream, p);
}

}  // namespace baltoro::cuda
