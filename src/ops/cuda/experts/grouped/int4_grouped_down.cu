// The down product of tens of rows an expert and more, where the form with the sum
// (int4_grouped_sum.cu) does not take the shape.
//
// A block takes 256 rows of weights (16 strips) by up to 112 rows of one expert at a time, a
// persistent share of all such pieces; two blocks take neighbouring pieces of the same rows at
// the same time, so that the second finds the activations in the L2. Two warpgroups each widen
// twice 64 rows of 4-bit values into registers, the first operand of wgmma, one 64 while the other
// is being multiplied; activations are the second operand, in shared memory. Four warps fill a
// ring: weights by bulk copies, activations 16 bytes at a time, in "matrix order"
// (int4_grouped_gate_up.cu), as gate/up wrote them.

#include <algorithm>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/layout/int4_layout.h"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kStages = 4;
constexpr int kTeam = kGroupedTeam;
constexpr int kConsumerWarps = 8;
constexpr int kProducers = 128;
constexpr int kThreads = 32 * kConsumerWarps + kProducers;
constexpr int kStrips = 2 * kConsumerWarps;          // of a piece
constexpr int kInputBytes = kGroupedTileRows * 256;  // 128 columns of every row, in two halves
constexpr int kWeightBytes = kStrips * kTileBytes;
// Results of down on their way out: two buffers a warpgroup of 16 rows by twice 64 columns.
constexpr int kOutPitch = 2 * 128 + 16;
constexpr int kOutBytes = 16 * kOutPitch;
constexpr int kSharedBytes = kStages * (kInputBytes + kWeightBytes + 16) + 2 * 2 * kOutBytes + 1024;

struct DownParams {
  const char* weights;
  int64_t slot_bytes;
  int32_t strips;
  int32_t column_tiles;
  const MoeStart* starts;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* in;
  int64_t in_stride;
  __nv_bfloat16* out;
  int32_t out_stride;
  const float* route_weights;
};

struct Ring {
  uint32_t input, weights, full, empty, out;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

// Rows of the matrix instruction's second operand for a tile of `count` rows.
__device__ __forceinline__ int Columns(int count) {
  return max(32, (count + 15) / 16 * 16);
}

__device__ __forceinline__ MoeTile LoadTile(const MoeTile* tiles, int at) {
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(tiles) + at);
  return {raw.x, raw.y, raw.z, 0};
}

// Of this block's piece of a unit.
__device__ __forceinline__ int FirstStrip(int unit_in_tile) {
  return (unit_in_tile * kTeam + static_cast<int>(blockIdx.x) % kTeam) * kStrips;
}

// The four producer warps: eight threads a row, rows thread / 8 and every 16th from there.
__device__ void Produce(const DownParams& p, int first, int last, int units_per_tile, Ring ring) {
  constexpr int kStep = kProducers / 8, kRows = kGroupedTileRows / kStep;
  const int thread = threadIdx.x - 32 * kConsumerWarps, lane = threadIdx.x % 32;
  const int row = thread / 8, chunk = thread % 8;
  const uint64_t policy = ReadOncePolicy();
  const int strip_bytes = p.column_tiles * kTileBytes;
  const uint32_t to_row = ring.input + row * 128 + ((chunk ^ (row & 7)) << 4);
  for (int unit = first; unit < last; ++unit) {
    const MoeTile tile = LoadTile(p.tiles, unit / units_per_tile);
    const int strip = FirstStrip(unit % units_per_tile);
    if (strip >= p.strips) continue;
    const int strips = min(kStrips, p.strips - strip);
    const int half_bytes = Columns(tile.count) * 128;
    const char* weights =
        p.weights + tile.slot * p.slot_bytes + static_cast<int64_t>(strip + lane) * strip_bytes;
    uint32_t source[kRows];  // in 16 bytes
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = tile.begin + min(row + kStep * i, tile.count - 1);
      source[i] = static_cast<uint32_t>(at * p.in_stride / 8);
    }
    const char* columns = reinterpret_cast<const char*>(p.in) + chunk * 16;
    for (int c = 0; c < p.column_tiles; ++c, columns += 256, weights += kTileBytes) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      if (thread < 32) {
        if (lane == 0) BarrierExpectBytes(ring.Full(), strips * kTileBytes);
        __syncwarp();
        if (lane < strips) {
          CopyBulk(ring.weights + ring.stage * kWeightBytes + lane * kTileBytes, weights,
                   kTileBytes, ring.Full(), policy);
        }
      }
      const uint32_t to = to_row + ring.stage * kInputBytes;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        const char* from = columns + static_cast<uint64_t>(source[i]) * 16;
        Copy16(to + i * kStep * 128, from);
        Copy16(to + i * kStep * 128 + half_bytes, from + 128);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
  }
}

// Where a tile's results go, in shared memory.
struct Targets {
  int32_t entry[kGroupedTileRows];  // t * k + j
  float weight[kGroupedTileRows];
};

// A warpgroup's eight strips of a piece of down: 64 columns of either half of a share, 16 rows at a
// time through shared memory, so that lines are written whole.
template <int kN>
__device__ __forceinline__ void StoreShares(const DownParams& p,
                                            const MoeTile& tile,
                                            int first_strip,
                                            const Targets& targets,
                                            uint32_t staging,
                                            const float (&acc)[2][kN / 2]) {
  const int group = threadIdx.x / 128, thread = threadIdx.x % 128;
  const int warp = thread / 32, lane = threadIdx.x % 32;
  const uint32_t own = staging + group * 2 * kOutBytes;
  const uint32_t to = own + (lane / 16 * 8 + lane % 8) * kOutPitch + lane / 8 % 2 * 128 + warp * 16;
  const int strip = first_strip + group * 8 + thread % 8;  // that this thread writes out
  const int column = strip * 8 + (thread / 8 % 2 == 0 ? 0 : p.strips * 8);
  const uint32_t from = own + thread / 8 % 2 * 128 + thread % 8 * 16;
#pragma unroll
  for (int j = 0; j < kN / 8; j += 2) {
    const uint32_t buffer = j / 2 % 2 * kOutBytes;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      uint32_t pairs[4];
#pragma unroll
      for (int m = 0; m < 4; ++m) {
        const int row = (j + m / 2) * 8 + lane % 4 * 2, at = (j + m / 2) * 4 + m % 2 * 2;
        pairs[m] = hopper::PackBf16(acc[block][at] * targets.weight[row],
                                    acc[block][at + 1] * targets.weight[row + 1]);
      }
      hopper::StoreMatricesTransposed(to + buffer + block * 64, pairs);
    }
    asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_chunk = half * 8 + thread / 16, row = j * 8 + in_chunk;
      const uint4 v = LoadShared4(from + buffer + in_chunk * kOutPitch);
      if (row >= tile.count || strip >= p.strips) continue;
      __nv_bfloat16* out = p.out + static_cast<int64_t>(targets.entry[row]) * p.out_stride;
      *reinterpret_cast<uint4*>(out + column) = v;
    }
  }
  // The next piece's first chunk goes into the first buffer, last read two chunks ago or, where
  // there is only one, just now.
  asm volatile("bar.sync %0, 128;" ::"r"(2 + group) : "memory");
}

// One piece: kN columns.
template <int kN>
__device__ __forceinline__ void MultiplyPiece(
    const DownParams& p, const MoeTile& tile, int first_strip, const Targets& targets, Ring& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int strip_in_piece = warp / 4 * 8 + warp % 4;  // and the fourth after it
  float acc[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[0][i] = acc[1][i] = 0;
  uint32_t a[2][4][4];
  for (int c = 0; c < p.column_tiles; ++c) {
    BarrierWait(ring.Full(), ring.parity);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const uint32_t packed = ring.weights + ring.stage * kWeightBytes + strip_in_piece * kTileBytes;
    const uint32_t input = ring.input + ring.stage * kInputBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int block = 0; block < 2; ++block) {
        const uint32_t weights = packed + block * 4 * kTileBytes;
        const uint4 words = LoadShared4(weights + half * 512 + lane * 16);
        const uint32_t low[2] = {words.x, words.z}, high[2] = {words.y, words.w};
        const uint2 scales = LoadShared2(weights + 1024 + lane / 4 * 16 + half * 8);
        if (half == 1) GroupWait<1>();  // the products that read this block's `a`
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int jj = i / 2, step = i % 2;
          const WidenScale scale_low = LoadScale(jj == 0 ? scales.x : scales.y, false);
          const WidenScale scale_high = LoadScale(jj == 0 ? scales.x : scales.y, true);
          a[block][i][0] = WidenPair(low[jj], 2 * step, scale_low);
          a[block][i][1] = WidenPair(high[jj], 2 * step, scale_high);
          a[block][i][2] = WidenPair(low[jj], 2 * step + 1, scale_low);
          a[block][i][3] = WidenPair(high[jj], 2 * step + 1, scale_high);
        }
        GroupFence();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          GroupMultiply<kN>::Add(acc[block], a[block][i],
                                 SwizzledOperand(input + half * kN * 128 + i * 32));
        }
        GroupCommit();
      }
    }
    // Products that go on into the next turn make the compiler put each behind the one before.
    GroupWait<0>();
    __syncwarp();  // every lane has read its weights
    if (lane == 0) BarrierArrive(ring.Empty());
    ring.Next();
  }
  StoreShares<kN>(p, tile, first_strip, targets, ring.out, acc);
}

__device__ int FirstUnit(const DownParams& p, int team, int units_per_tile) {
  const int2 start = __ldcg(reinterpret_cast<const int2*>(p.starts) + team);
  return start.x * units_per_tile +
         static_cast<int>(static_cast<int64_t>(start.y) * units_per_tile >> 16);
}

__global__ void __launch_bounds__(kThreads, 1)
    GroupedDownKernel(const __grid_constant__ DownParams p) {
  extern __shared__ char memory[];
  __shared__ Targets targets[2];
  Ring ring;
  ring.input = (SharedAddress(memory) + 1023) / 1024 * 1024;
  ring.weights = ring.input + kStages * kInputBytes;
  ring.full = ring.weights + kStages * kWeightBytes;
  ring.empty = ring.full + 8 * kStages;
  ring.out = ring.empty + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(ring.full + 8 * s, 1 + kProducers);
      BarrierInit(ring.empty + 8 * s, kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  const int pieces = (p.strips + kStrips - 1) / kStrips;
  // A unit is a piece for each block of the team.
  const int units_per_tile = (pieces + kTeam - 1) / kTeam;
  const int first = FirstUnit(p, blockIdx.x / kTeam, units_per_tile);
  const int last = FirstUnit(p, blockIdx.x / kTeam + 1, units_per_tile);
  // Registers move from the producers to the others; together they stay at 168 a thread.
  if (threadIdx.x >= 32 * kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    Produce(p, first, last, units_per_tile, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    MoeTile tile = {};
    int index = -1, buffer = 0;
    for (int unit = first; unit < last; ++unit) {
      const int strip = FirstStrip(unit % units_per_tile);
      if (strip >= p.strips) continue;
      if (unit / units_per_tile != index) {
        // Two buffers: nobody is more than one tile ahead of another.
        index = unit / units_per_tile;
        tile = LoadTile(p.tiles, index);
        buffer ^= 1;
        if (threadIdx.x < tile.count) {
          const int at = tile.begin + threadIdx.x;
          const int entry = __ldcg(p.order + at);
          targets[buffer].entry[threadIdx.x] = entry;
          targets[buffer].weight[threadIdx.x] = __ldg(p.route_weights + entry) * kWidenUndo;
        }
        asm volatile("bar.sync 1, %0;" ::"n"(32 * kConsumerWarps) : "memory");
      }
      const int columns = Columns(tile.count);
      switch (columns) {
        case 32:
          MultiplyPiece<32>(p, tile, strip, targets[buffer], ring);
          break;
        case 48:
          MultiplyPiece<48>(p, tile, strip, targets[buffer], ring);
          break;
        case 64:
          MultiplyPiece<64>(p, tile, strip, targets[buffer], ring);
          break;
        case 80:
          MultiplyPiece<80>(p, tile, strip, targets[buffer], ring);
          break;
        case 96:
          MultiplyPiece<96>(p, tile, strip, targets[buffer], ring);
          break;
        default:
          MultiplyPiece<112>(p, tile, strip, targets[buffer], ring);
      }
    }
  }
}

}  // namespace

Status LaunchMoeGroupedDown(const MoeShape& shape,
                            const MoeInt4Args& args,
                            const MoeWorkspace& space,
                            const ExpertsPlan& plan,
                            const LaunchStream& stream) {
  DownParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.column_tiles = shape.intermediate / 128;
  p.starts = space.starts;
  p.tiles = space.tiles;
  p.order = space.order;
  p.in = space.middle;
  p.in_stride = shape.intermediate;
  p.out = space.shares;
  p.out_stride = shape.hidden;
  p.route_weights = args.weights;
  const cudaError_t error = cudaFuncSetAttribute(
      GroupedDownKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) {
    return Status(Code::kInternal, std::string("MoE down: ") + cudaGetErrorString(error));
  }
  return LaunchOverlapped("MoE down, grouped", GroupedDownKernel, dim3(plan.blocks * kTeam),
                          dim3(kThreads), kSharedBytes, stream, 1, p);
}

}  // namespace baltoro::cuda
