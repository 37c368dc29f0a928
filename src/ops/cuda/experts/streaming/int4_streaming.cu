// The streaming form of the expert products: few rows an expert, bound by the bytes of the weights.
// Of more than 32 entries, with I = 256, int4_digits.cu and int4_digits_down.cu have it.
//
// Each block, a few per multiprocessor, takes an equal share of the weight strips (16 rows x all
// columns) of the chosen experts, in order. One warp feeds a ring in shared memory with bulk
// copies, far ahead; the others widen the 4-bit values in registers and multiply: weights are the
// 16 rows of the matrix instruction, tokens its 8 columns, activations come through the L1 cache.
//
// Two forms of the work. kWarpsK warps share one strip along its columns and add up at its end (the
// long strips of gate/up); two strips of one expert are in work together where there are two, so
// that activations are loaded once for both. Or kWarpsM warps take a strip each (the short ones of
// down).

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/grouped/int4_tile_multiply.cuh"
#include "ops/cuda/experts/streaming/int4_digits.h"
#include "ops/cuda/experts/streaming/int4_streaming.cuh"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/ptx/hopper.cuh"

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

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <typename F, int kN>
__device__ __noinline__ Progress<F> MultiplyLargeRun(const ProductParams& p,
                                                     UnitRun run,
                                                     Shared shared,
                                                     Progress<F> progress) {
  MultiplyRun<F, kN>(p, run, shared, progress);
  return progress;
}

template <typename F>
__global__ void __launch_bounds__(F::kThreads, kStreamingBlocks)
    StreamProductKernel(const __grid_constant__ ProductParams p) {
  extern __shared__ __align__(128) char memory[];
  Shared shared;
  shared.partials = reinterpret_cast<float4*>(memory + F::kStages * F::kStageBytes);
  shared.ring = SharedAddress(memory);
  shared.full = shared.ring + F::kStages * F::kStageBytes + F::kPartialBytes;
  shared.empty = shared.full + 8 * F::kStages;
  InitRing<F::kStages>(shared.full, shared.empty, F::kWarps);
  // The down product's weights depend on the routing alone, and the gate/up product let this kernel
  // start only once the routing was done: its ring is filled while gate/up ends.
  const bool feeder = threadIdx.x >= F::kWarps * 32;
  if (F::kGateUp || !feeder) WaitForEarlierKernels();
  AllowNextKernel();

  const int units_per_tile = (p.strips + F::kWarpsM - 1) / F::kWarpsM;
  const int first = FirstUnit(p, blockIdx.x, units_per_tile);
  const int last = FirstUnit(p, blockIdx.x + 1, units_per_tile);
  if (feeder) {
    FeedRing<F>(p, first, last, units_per_tile, shared.ring, shared.full, shared.empty);
    return;
  }
  Progress<F> progress;
  for (int unit = first; unit < last;) {
    const UnitRun run = NextRun(p, unit, last, units_per_tile);
    unit += run.last - run.first;
    if (run.tile.count == 0) continue;  // not held here
    if (run.tile.count <= 8) {
      MultiplyRun<F, 1>(p, run, shared, progress);
    } else if (run.tile.count <= 16) {
      progress = MultiplyLargeRun<F, 2>(p, run, shared, progress);
    } else {
      progress = MultiplyLargeRun<F, 4>(p, run, shared, progress);
    }
  }
}

template <typename F>
Status Launch(const char* what, int32_t blocks, const ProductParams& params, cudaStream_t stream) {
  return LaunchMoeStreaming(what, StreamProductKernel<F>, blocks, F::kThreads, F::kSharedBytes,
                            stream, params);
}

// The tiles, as the routing cut them or one an entry.
void SetTiles(const MoeShape& shape,
              const MoeInt4Args& args,
              const MoeWorkspace& space,
              const ExpertsPlan& plan,
              ProductParams& p) {
  p.starts = space.starts;
  p.tiles = space.tiles;
  p.order = space.order;
  p.top_k = shape.top_k;
  if (plan.kernel != ExpertsKernel::kInt4Entries) return;
  p.ids = args.ids;
  p.slot_of = args.slot_of;
  p.experts = args.experts;
  p.slots = shape.slots;
  p.entries = args.tokens * shape.top_k;
}

}  // namespace

Status LaunchMoeStreamGateUp(const MoeShape& shape,
                             const MoeInt4Args& args,
                             const MoeWorkspace& space,
                             const ExpertsPlan& plan,
                             cudaStream_t stream) {
  ProductParams p = {};
  p.weights = static_cast<const char*>(args.gate_up);
  p.slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden);
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  SetTiles(shape, args, space, plan, p);
  p.in = args.x;
  p.in_stride = args.x_stride;
  p.out = space.middle;
  p.out_stride = shape.intermediate;
  return Launch<GateUpForm>("MoE gate/up", plan.blocks, p, stream);
}

Status LaunchMoeStreamDown(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoeWorkspace& space,
                           const ExpertsPlan& plan,
                           cudaStream_t stream) {
  ProductParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.column_tiles = shape.intermediate / 128;
  SetTiles(shape, args, space, plan, p);
  p.in = space.middle;
  p.in_stride = shape.intermediate;
  p.out = space.shares;
  p.out_stride = shape.hidden;
  p.route_weights = args.weights;
  return Launch<DownForm>("MoE down", plan.blocks, p, stream);
}

}  // namespace baltoro::cuda
