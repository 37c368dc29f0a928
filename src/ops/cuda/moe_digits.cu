// The gate/up product of few rows an expert, with SiLU * mul: bound by the bytes of the weights.
//
// As the streaming form (moe_stream.cu): two blocks a multiprocessor, each with an equal share of
// the weight strips (16 rows x all columns) of the chosen experts, in order; one warp feeds a ring
// with bulk copies, eight others share a strip along its columns and add up at its end. Codes are
// multiplied as integers by activations of two digits (moe_digits.cuh): the widening to bf16 and
// its scaling took more time than the bytes. A kernel before makes the digits.
//
// Four strips of one expert are in work together where there are so many, so that digits are loaded
// once for all of them: of eight rows they are half as many bytes as four strips.

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_digits.cuh"
#include "ops/cuda/moe_digits.h"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_streaming.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kWarps = 8;
constexpr int kThreads = 32 * (kWarps + 1);
constexpr int kStages = 8;
constexpr int kStageBytes = kWarps * kTileBytes;
constexpr int kPartials = 8;  // of a warp: sums of a strip by one set
constexpr int kPartialBytes = kPartials * kWarps * 32 * static_cast<int>(sizeof(float2));
constexpr int kSharedBytes = kStages * kStageBytes + kPartialBytes + kStages * 16;

struct GateUpParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t strips;        // of one matrix
  int32_t column_tiles;  // of a strip, 128 columns each
  const MoeStart* starts;
  const MoeTile* tiles;
  const int32_t* order;
  const char* digits;       // [T][2][H]
  const float* row_scales;  // [T]
  __nv_bfloat16* out;       // middle
  int32_t out_stride, top_k;
  DigitConstants constants;
};

// Strips in work together where `left` are left of a run.
constexpr int kTogether = 4;
__device__ __forceinline__ int StripsTogether(int left) {
  return left >= kTogether ? kTogether : left >= 2 ? 2 : 1;
}

__device__ void FeedRing(
    const GateUpParams& p, int strip, int last, uint32_t ring, uint32_t full, uint32_t empty) {
  const bool leader = threadIdx.x % 32 == 0;
  const uint64_t policy = ReadOncePolicy();
  const int strip_bytes = p.column_tiles * kTileBytes;
  RingPosition<kStages> at;
  while (strip < last) {
    const UnitRun run = NextRun(p.tiles, strip, last, p.strips);
    strip += run.last - run.first;
    const char* weights = p.weights + run.tile.slot * p.slot_bytes;
    for (int u = run.first; u < run.last;) {
      const int together = StripsTogether(run.last - u);
      for (int done = 0; done < strip_bytes; done += kStageBytes) {
        const int bytes = min(kStageBytes, strip_bytes - done);
        for (int s = 0; s < together; ++s) {
          BarrierWait(empty + 8 * at.stage, at.parity ^ 1);
          if (leader) {
            BarrierExpectBytes(full + 8 * at.stage, bytes);
            CopyBulk(ring + at.stage * kStageBytes,
                     weights + static_cast<int64_t>(u + s) * strip_bytes + done, bytes,
                     full + 8 * at.stage, policy);
          }
          __syncwarp();
          at.Next();
        }
      }
      u += together;
    }
  }
}

// The rows of a tile as one thread sees them. Rows beyond the tile's count repeat its first one:
// the columns of the matrix instruction do not mix, and theirs are not stored.
template <int kN>
struct Rows {
  const char* digits[kN];  // this lane's of the first columns
  float factor[kN];        // of the row whose results this thread has; 0: none
  int begin, count;

  __device__ __forceinline__ Rows(const GateUpParams& p, const MoeTile& tile, int lane)
      : begin(tile.begin), count(tile.count) {
    const int hidden = p.column_tiles * 128;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const auto token = [&](int row) {
        return __ldcg(p.order + begin + (row < count ? row : 0)) / p.top_k;
      };
      const int column = lane / 4;  // of the matrix instruction
      const int64_t source = token(n * kSetRows + column / 2);
      digits[n] = p.digits + (source * 2 + column % 2) * hidden + lane % 4 * 32;
      factor[n] = __ldcg(p.row_scales + token(n * kSetRows + lane % 4)) * kDigitsUndo;
    }
  }

  __device__ __forceinline__ void Load(uint4 (&x)[kN][2], int column_tile) const {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      x[n][0] = LoadGlobal4(digits[n] + column_tile * 128);
      x[n][1] = LoadGlobal4(digits[n] + column_tile * 128 + 16);
    }
  }
};

struct Shared {
  float2* partials;
  uint32_t ring, full, empty;
};

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

struct Progress {
  RingPosition<kStages> at;
  uint32_t turns = 0;  // of adding up
};

// kCount strips from `strip` on.
template <int kN, int kCount>
__device__ __forceinline__ void MultiplyStrips(const GateUpParams& p,
                                               const Rows<kN>& rows,
                                               int strip,
                                               const Shared& shared,
                                               Progress& progress) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  // Strips whose products stand between each other's, so that they hide each other's latency.
  constexpr int kPair = kCount < 2 ? 1 : 2, kPairs = kCount / kPair;
  float sums[kPairs][kPair][kN][2] = {};
  RingPosition<kStages> at = progress.at;
  for (int base = 0; base < p.column_tiles; base += kWarps) {
    const bool inside = base + warp < p.column_tiles;
    // Under way while the warp waits for weights.
    uint4 x[kN][2];
    rows.Load(x, min(base + warp, p.column_tiles - 1));
#pragma unroll
    for (int pair = 0; pair < kPairs; ++pair) {
      uint32_t tiles[kPair];
      int stages[kPair];
#pragma unroll
      for (int s = 0; s < kPair; ++s) {
        BarrierWait(shared.full + 8 * at.stage, at.parity);
        stages[s] = at.stage;
        tiles[s] = shared.ring + at.stage * kStageBytes + warp * kTileBytes;
        at.Next();
      }
      if (inside) MultiplyCodes<kPair, kN>(sums[pair], tiles, x, lane, p.constants);
      hopper::FinishLoads();
      __syncwarp();
      if (lane == 0) {
#pragma unroll
        for (int s = 0; s < kPair; ++s) BarrierArrive(shared.empty + 8 * stages[s]);
      }
    }
  }
  progress.at = at;
  // The warps' sums, of as many strips at a time as there are places for. While there is room for
  // two turns, whoever adds up has done so before the next turn's barrier; else a barrier stands
  // before places are used again.
  constexpr bool kTwoTurns = 2 * kTogether * kN <= kPartials;
  constexpr int kPlaces = kTwoTurns ? kTogether * kN : kPartials;
  constexpr int kTurn = kCount < kPartials / kN ? kCount : kPartials / kN;
#pragma unroll
  for (int done = 0; done < kCount; done += kTurn) {
    float2* const places =
        shared.partials + (kTwoTurns ? progress.turns % 2 * kPlaces * kWarps * 32 : 0);
    if (!kTwoTurns) ConsumerBarrier();
#pragma unroll
    for (int s = done; s < min(kCount, done + kTurn); ++s) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float(&c)[2] = sums[s / kPair][s % kPair][n];
        places[(((s - done) * kN + n) * kWarps + warp) * 32 + lane] = make_float2(c[0], c[1]);
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
      const float2 v = places[(place * kWarps + k) * 32 + lane];
      gate += v.x;
      up += v.y;
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
                                            const UnitRun& run,
                                            const Shared& shared,
                                            Progress& progress) {
  const Rows<kN> rows(p, run.tile, threadIdx.x % 32);
  for (int strip = run.first; strip < run.last;) {
    const int together = StripsTogether(run.last - strip);
    if (together == kTogether) {
      MultiplyStrips<kN, kTogether>(p, rows, strip, shared, progress);
    } else if (together == 2) {
      MultiplyStrips<kN, 2>(p, rows, strip, shared, progress);
    } else {
      MultiplyStrips<kN, 1>(p, rows, strip, shared, progress);
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
MultiplyLargeRun(const GateUpParams& p, UnitRun run, Shared shared, Progress progress) {
  MultiplyRun<kN>(p, run, shared, progress);
  return progress;
}

__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    DigitsGateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ __align__(128) char memory[];
  Shared shared;
  shared.ring = SharedAddress(memory);
  shared.partials = reinterpret_cast<float2*>(memory + kStages * kStageBytes);
  shared.full = shared.ring + kStages * kStageBytes + kPartialBytes;
  shared.empty = shared.full + 8 * kStages;
  InitRing<kStages>(shared.full, shared.empty, kWarps);
  WaitForEarlierKernels();
  AllowNextKernel();
  const int first = MoeFirstUnit(p.starts, static_cast<int>(blockIdx.x), p.strips);
  const int last = MoeFirstUnit(p.starts, static_cast<int>(blockIdx.x) + 1, p.strips);
  if (threadIdx.x >= kWarps * 32) {
    FeedRing(p, first, last, shared.ring, shared.full, shared.empty);
    return;
  }
  Progress progress;
  for (int strip = first; strip < last;) {
    const UnitRun run = NextRun(p.tiles, strip, last, p.strips);
    strip += run.last - run.first;
    if (run.tile.count <= kSetRows) {
      MultiplyRun<1>(p, run, shared, progress);
    } else if (run.tile.count <= 2 * kSetRows) {
      MultiplyRun<2>(p, run, shared, progress);
    } else if (run.tile.count <= 3 * kSetRows) {
      progress = MultiplyLargeRun<3>(p, run, shared, progress);
    } else {
      progress = MultiplyLargeRun<4>(p, run, shared, progress);
    }
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
// begun to write, behind the routing's ranks; their digits where the wide form has x in order.
DigitRows MoeDigitRows(const MoeShape& shape, const MoeInt4Args& args, const MoePlan& plan) {
  return {args.x, args.x_stride, shape.hidden, reinterpret_cast<char*>(plan.ordered),
          reinterpret_cast<float*>(plan.shares) + static_cast<int64_t>(args.tokens) * shape.top_k};
}

Status LaunchMoeDigitsGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoePlan& plan,
                             cudaStream_t stream) {
  const DigitRows digits = MoeDigitRows(shape, args, plan);
  if (!args.prepared) {
    BT_RETURN_IF_ERROR(LaunchOverlapped("MoE activations as digits", DigitsKernel,
                                        dim3(args.tokens), dim3(32 * kDigitWarps), 0, stream, 1,
                                        digits));
  }
  GateUpParams p = {};
  p.weights = static_cast<const char*>(args.gate_up);
  p.slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden);
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  p.starts = plan.starts;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.digits = digits.digits;
  p.row_scales = digits.row_scales;
  p.out = plan.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  return LaunchMoeStreaming("MoE gate/up by digits", DigitsGateUpKernel, kThreads, kSharedBytes,
                            stream, p);
}

}  // namespace baltoro::cuda
