// The gate/up product of few rows an expert, with SiLU * mul: bound by the bytes of the weights.
//
// As the streaming form (int4_streaming.cu): two blocks a multiprocessor, among which the weight
// strips (16 rows x all columns) of the chosen experts are dealt out (int4_digits_work.cuh); one
// warp feeds a ring with bulk copies, eight others share a strip along its columns and add up at
// its end. Codes are multiplied as integers by activations of two digits (int4_digits.cuh): the
// widening to bf16 and its scaling took more time than the bytes. A kernel before makes the digits.
//
// Four strips of one expert are in work together where there are so many, so that digits are loaded
// once for all of them: of eight rows they are half as many bytes as four strips.

#include "ops/cuda/experts/bank_regions.h"
#include "ops/cuda/experts/streaming/int4_digits.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/experts/streaming/int4_digits_work.cuh"
#include "ops/cuda/experts/streaming/int4_streaming_shared.cuh"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kWarps = 8;
constexpr int kThreads = 32 * (kWarps + 1);
// A stage has eight column tiles of one or two strips.
constexpr int kStages = 4;
constexpr int kStripStageBytes = kWarps * kTileBytes;
constexpr int kStageBytes = 2 * kStripStageBytes;
constexpr int kPartials = 8;  // of a warp: sums of a strip by one set
constexpr int kPartialBytes = kPartials * kWarps * 32 * static_cast<int>(sizeof(float2));
constexpr int kSharedBytes =
    kStages * kStageBytes + kPartialBytes + kStages * 16 + static_cast<int>(sizeof(WorkQueue));

struct GateUpParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t column_tiles, steps;  // of a strip, 128 columns each; eight of them are a step
  WorkParams work;              // in strips
  const char* digits;           // [T][2][H]
  const float* row_scales;      // [T]
  __nv_bfloat16* out;           // middle
  int32_t out_stride, top_k;
  DigitConstants constants;
};

// Strips in work together where `left` are left of a run.
constexpr int kTogether = kDigitTogether;
__device__ __forceinline__ int StripsTogether(int left) {
  return left >= kTogether ? kTogether : left >= 2 ? 2 : 1;
}

// Where things are in shared memory, behind the ring.
constexpr int kPartialsAt = kStages * kStageBytes, kQueueAt = kPartialsAt + kPartialBytes;
constexpr int kBarriersAt = kQueueAt + static_cast<int>(sizeof(WorkQueue));

struct Shared {
  uint32_t ring;
  uint32_t words, scales;  // of this thread in the first stage

  __device__ __forceinline__ uint32_t Full(int stage) const {
    return ring + kBarriersAt + 8 * stage;
  }
  __device__ __forceinline__ uint32_t Empty(int stage) const { return Full(stage) + 8 * kStages; }
};

// Stages that are left to ask for when the next piece is; those of a run asked for before the
// others are told of it.
constexpr int kAskAhead = 3, kTellAfter = 2;

__device__ void FeedRing(const GateUpParams& p, const Shared& shared) {
  const bool leader = threadIdx.x % 32 == 0;
  const uint64_t policy = ReadOncePolicy();
  const int strip_bytes = p.column_tiles * kTileBytes;
  RingPosition<kStages> at;
  WorkFeeder feeder(p.work, shared.ring + kQueueAt);
  UnitRun run;
  while (feeder.Next(run)) {
    const char* weights =
        p.weights + run.tile.slot * p.slot_bytes + static_cast<int64_t>(run.first) * strip_bytes;
    int left = (run.last - run.first + 1) / 2 * p.steps, asked = 0;
    const int tell = min(left, kTellAfter);
    for (int strips = run.last - run.first; strips > 0;) {
      const int together = StripsTogether(strips), pair = min(together, 2);
      for (int done = 0; done < strip_bytes; done += kStripStageBytes) {
        const int bytes = min(kStripStageBytes, strip_bytes - done);
        for (int s = 0; s < together; s += 2) {
          BarrierWait(shared.Empty(at.stage), at.parity ^ 1);
          if (leader) {
            const uint32_t to = shared.ring + at.stage * kStageBytes, full = shared.Full(at.stage);
            const char* const from = weights + static_cast<int64_t>(s) * strip_bytes + done;
            BarrierExpectBytes(full, bytes * pair);
            CopyBulk(to, from, bytes, full, policy);
            if (pair == 2) CopyBulk(to + kStripStageBytes, from + strip_bytes, bytes, full, policy);
          }
          __syncwarp();
          at.Next();
          if (++asked == tell) feeder.Tell(run);
          if (--left == kAskAhead || (left == 0 && asked <= kAskAhead)) feeder.AskAhead();
        }
      }
      weights += static_cast<int64_t>(together) * strip_bytes;
      strips -= together;
    }
  }
  feeder.TellEnd();
}

// The rows of a tile as one thread sees them. Rows beyond the tile's count repeat its first one:
// the columns of the matrix instruction do not mix, and theirs are not stored.
template <int kN>
struct Rows {
  uint32_t digits[kN];  // where this lane's of the warp's first columns are
  float factor[kN];     // of the row whose results this thread has; 0: none
  int begin, count;

  __device__ __forceinline__
  Rows(const GateUpParams& p, const WorkRun& run, uint32_t queue, uint32_t index, int lane)
      : begin(run.begin), count(run.count) {
    const uint32_t hidden = p.column_tiles * 128;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const auto token = [&](int row) { return ReadEntry(queue, index, row) / p.top_k; };
      const int column = lane / 4;  // of the matrix instruction
      const uint32_t source = token(n * kSetRows + column / 2);
      digits[n] = (source * 2 + column % 2) * hidden + lane % 4 * 16;
      factor[n] = __ldcg(p.row_scales + token(n * kSetRows + lane % 4)) * kDigitsUndo;
    }
  }

  // Half i of a column tile's.
  __device__ __forceinline__ void Load(uint4 (&x)[kN][2],
                                       int i,
                                       const char* all,
                                       uint32_t column) const {
#pragma unroll
    for (int n = 0; n < kN; ++n) x[n][i] = LoadGlobal4(all + (digits[n] + column) + 64 * i);
  }
};

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

struct Progress {
  RingPosition<kStages> at;
  uint32_t turns = 0;  // of adding up
  uint32_t run = 0;
};

// Where the first digits that a warp loads are; any, where it has none.
__device__ __forceinline__ uint32_t FirstColumn(const GateUpParams& p) {
  const uint32_t column = threadIdx.x / 32 * 128;
  return column < static_cast<uint32_t>(p.column_tiles * 128) ? column : 0;
}

// kCount strips from `strip` on. x: the digits of the warp's first columns, before and after. The
// next ones are asked for as soon as the last products with those before them are under way, so
// that nothing waits for them.
template <int kN, int kCount>
__device__ __forceinline__ void MultiplyStrips(const GateUpParams& p,
                                               const Rows<kN>& rows,
                                               int strip,
                                               const Shared& shared,
                                               uint4 (&x)[kN][2],
                                               Progress& progress) {
  // Strips whose products stand between each other's, so that they hide each other's latency.
  constexpr int kPair = kCount < 2 ? 1 : 2, kPairs = kCount / kPair;
  float sums[kPairs][kPair][kN][2] = {};
  RingPosition<kStages> at = progress.at;
  const uint32_t end = p.column_tiles * 128;
  const uint32_t first_column = FirstColumn(p);
  uint32_t column = threadIdx.x / 32 * 128;
  for (int step = p.steps; step > 0; --step) {
    const bool inside = column < end;
    column += 128 * kWarps;
    const uint32_t next = column < end ? column : first_column;
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      BarrierWait(shared.Full(at.stage), at.parity);
      if (inside) {
        uint32_t words[kPair], scales[kPair];
#pragma unroll
        for (int s = 0; s < kPair; ++s) {
          words[s] = shared.words + at.stage * kStageBytes + s * kStripStageBytes;
          scales[s] = shared.scales + at.stage * kStageBytes + s * kStripStageBytes;
        }
        MultiplyCodes<kPair, kN>(sums[pair], words, scales, x, p.constants, [&](int half) {
          if (pair == kPairs - 1) rows.Load(x, half, p.digits, next);
        });
      }
      __syncwarp();
      if (FirstLane()) GiveBack(shared.Empty(at.stage), sums[pair], p.constants);
      at.Next();
    }
  }
  progress.at = at;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // The warps' sums, of as many strips at a time as there are places for. While there is room for
  // two turns, whoever adds up has done so before the next turn's barrier; else a barrier stands
  // before places are used again.
  constexpr bool kTwoTurns = 2 * kTogether * kN <= kPartials;
  constexpr int kPlaces = kTwoTurns ? kTogether * kN : kPartials;
  constexpr int kTurn = kCount < kPartials / kN ? kCount : kPartials / kN;
#pragma unroll
  for (int done = 0; done < kCount; done += kTurn) {
    const uint32_t places = shared.ring + kPartialsAt +
                            (kTwoTurns ? progress.turns % 2 * kPlaces * kWarps * 256 : 0) +
                            lane * 8;
    if (!kTwoTurns) ConsumerBarrier();
#pragma unroll
    for (int s = done; s < min(kCount, done + kTurn); ++s) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float(&c)[2] = sums[s / kPair][s % kPair][n];
        StoreShared2(places + (((s - done) * kN + n) * kWarps + warp) * 256, __float_as_uint(c[0]),
                     __float_as_uint(c[1]));
      }
    }
    ConsumerBarrier();
    // A place for a warp, the first for another warp in each turn.
    const int place = static_cast<int>((warp + progress.turns * (kPlaces / 2 + 1)) % kWarps);
    ++progress.turns;
    if (place >= min(kCount - done, kTurn) * kN) continue;
    const int s = place / kN, n = place % kN, row = n * kSetRows + lane % 4;
    float gate = 0, up = 0, factor = rows.factor[0];
#pragma unroll
    for (int k = 0; k < kWarps; ++k) {
      const uint2 v = LoadShared2(places + (place * kWarps + k) * 256);
      gate += __uint_as_float(v.x);
      up += __uint_as_float(v.y);
    }
#pragma unroll
    for (int i = 1; i < kN; ++i) factor = n == i ? rows.factor[i] : factor;
    if (row >= rows.count) continue;
    p.out[static_cast<int64_t>(rows.begin + row) * p.out_stride + (strip + done + s) * 8 +
          lane / 4] = __float2bfloat16_rn(FastSiluTimes(gate * factor, up * factor));
  }
}

template <int kN>
__device__ __forceinline__ void MultiplyRun(const GateUpParams& p,
                                            const WorkRun& run,
                                            const Shared& shared,
                                            Progress& progress) {
  const Rows<kN> rows(p, run, shared.ring + kQueueAt, progress.run, threadIdx.x % 32);
  uint4 x[kN][2];
  rows.Load(x, 0, p.digits, FirstColumn(p));
  rows.Load(x, 1, p.digits, FirstColumn(p));
  for (int strip = run.first; strip < run.last;) {
    const int together = StripsTogether(run.last - strip);
    if (together == kTogether) {
      MultiplyStrips<kN, kTogether>(p, rows, strip, shared, x, progress);
    } else if (together == 2) {
      MultiplyStrips<kN, 2>(p, rows, strip, shared, x, progress);
    } else {
      MultiplyStrips<kN, 1>(p, rows, strip, shared, x, progress);
    }
    strip += together;
  }
  // The next run's first sums may go where these are being added up.
  ConsumerBarrier();
}

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <int kN>
__device__ __noinline__ Progress
MultiplyLargeRun(const GateUpParams& p, WorkRun run, Shared shared, Progress progress) {
  MultiplyRun<kN>(p, run, shared, progress);
  return progress;
}

__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    DigitsGateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ __align__(128) char memory[];
  Shared shared;
  shared.ring = SharedAddress(memory);
  InitQueue(shared.ring + kQueueAt);
  InitRing<kStages>(shared.Full(0), shared.Empty(0), kWarps);
  WaitForEarlierKernels();
  AllowNextKernel();
  if (threadIdx.x >= kWarps * 32) {
    FeedRing(p, shared);
    return;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  shared.words = shared.ring + warp * kTileBytes + lane * 16;
  shared.scales = shared.ring + warp * kTileBytes + 1024 + lane / 4 * 16;
  Progress progress;
  while (true) {
    const WorkRun run = ReadRun(shared.ring + kQueueAt, progress.run);
    if (run.count == 0) return;
    if (run.count <= kSetRows) {
      MultiplyRun<1>(p, run, shared, progress);
    } else if (run.count <= 2 * kSetRows) {
      MultiplyRun<2>(p, run, shared, progress);
    } else if (run.count <= 3 * kSetRows) {
      progress = MultiplyLargeRun<3>(p, run, shared, progress);
    } else {
      progress = MultiplyLargeRun<4>(p, run, shared, progress);
    }
    ++progress.run;
  }
}

constexpr int kDigitWarps = 8;

// A block a row of x.
__global__ void __launch_bounds__(32 * kDigitWarps) DigitsKernel(const DigitRows p) {
  __shared__ uint32_t largest_of[kDigitWarps];
  AllowNextKernel();
  // The routing let this kernel start only when all before it had ended, and does not touch x.
  WriteDigits<kDigitWarps>(p, static_cast<int>(blockIdx.x), largest_of);
  WaitForEarlierKernels();  // so that whoever waits for this kernel has waited for the routing
}

}  // namespace

// The scales of x's rows lie in memory that the routing has done with and the down product has not
// begun to write, behind the routing's ranks; their digits where the grouped form has x in matrix
// order.
DigitRows MoeDigitRows(const MoeShape& shape, const MoeInt4Args& args, const MoeWorkspace& space) {
  return {args.x, args.x_stride, shape.hidden, reinterpret_cast<char*>(space.ordered),
          reinterpret_cast<float*>(space.shares) + static_cast<int64_t>(args.tokens) * shape.top_k};
}

Status LaunchMoeDigitsGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoeWorkspace& space,
                             const ExpertsPlan& plan,
                             const LaunchStream& stream) {
  const DigitRows digits = MoeDigitRows(shape, args, space);
  if (plan.chooser != ExpertsChooser::kPreparation) {
    LaunchNote note = "MoE activations as digits";
    note.early_reads = InputOf(digits, args.tokens);
    note.early_writes = MadeBy(digits, args.tokens);
    note.reads = note.early_reads;
    note.writes = note.early_writes;
    BT_RETURN_IF_ERROR(LaunchOverlapped(note, DigitsKernel, dim3(args.tokens),
                                        dim3(32 * kDigitWarps), 0, stream, 1, digits));
  }
  GateUpParams p = {};
  p.weights = static_cast<const char*>(args.gate_up);
  p.slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden);
  p.column_tiles = shape.hidden / 128;
  p.steps = (p.column_tiles + kWarps - 1) / kWarps;
  p.work = {.starts = space.starts,
            .tiles = space.tiles,
            .num_tiles = space.num_tiles,
            .order = space.order,
            .taken = space.counters,
            .units = 2 * shape.intermediate / 16,
            .piece = kDigitGateUpPiece,
            .align = plan.together};
  p.digits = digits.digits;
  p.row_scales = digits.row_scales;
  p.out = space.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  const Int4BankRegions of{shape, args, space};
  Regions reads = MadeBy(digits, args.tokens);
  reads.Add(of.sorted());
  const Region taken = CounterOf(space.counters, 0);
  reads.Add(taken);
  return LaunchMoeStreaming(WaitsFirst("MoE gate/up by digits", {of.middle(), taken}, reads),
                            DigitsGateUpKernel, plan.blocks, kThreads, kSharedBytes, stream, p);
}

}  // namespace baltoro::cuda
