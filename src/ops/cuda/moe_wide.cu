// The wide form of the expert products: tens of rows an expert and more, bound by arithmetic.
//
// A block takes 256 rows of weights (16 strips) by up to 128 tokens of one expert at a time, a
// persistent share of all such pieces; two blocks take neighbouring pieces of the same tokens at
// the same time, so that the second finds the activations in the L2. Two warpgroups each widen
// twice 64 rows of 4-bit values into registers, the first operand of wgmma, one 64 while the other
// is being multiplied; tokens are the second operand, in shared memory. Four warps fill a ring:
// weights by bulk copies, the expert's rows of activations 16 bytes at a time. Activations are read
// in "matrix order": within each 32 columns, column 8 t + 2 q + e lies at 8 q + 2 t + e, which is
// how the packed weights number them (moe_int4_layout.h). A first kernel brings x into that order;
// the middle activations are written in it.

#include <algorithm>
#include <cstdlib>

#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kStages = 4;
constexpr int kTeam = kWideTeam;
constexpr int kConsumerWarps = 8;
constexpr int kProducers = 128;
constexpr int kThreads = 32 * kConsumerWarps + kProducers;
constexpr int kStrips = 2 * kConsumerWarps;       // of a piece
constexpr int kInputBytes = kWideTileRows * 256;  // 128 columns of every row, in two halves
constexpr int kWeightBytes = kStrips * kTileBytes;
// Results of down on their way out: two buffers a warpgroup of 16 rows by twice 64 columns.
constexpr int kOutPitch = 2 * 128 + 16;
constexpr int kOutBytes = 16 * kOutPitch;
constexpr int kSharedBytes = kStages * (kInputBytes + kWeightBytes + 16) + 2 * 2 * kOutBytes + 1024;

struct WideParams {
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
  int32_t top_k;
  const float* route_weights;
  int32_t diag;
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

__device__ __forceinline__ void Copy16Kept(uint32_t to_shared, const void* from, uint64_t policy) {
  asm volatile(
      "cp.async.cg.shared.global.L2::cache_hint.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared),
      "l"(from), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void Copy16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}

// The four producer warps: eight threads a row, rows thread / 8 and every 16th from there.
template <bool kGateUp>
__device__ void Produce(const WideParams& p, int first, int last, int units_per_tile, Ring ring) {
  constexpr int kStep = kProducers / 8, kRows = kWideTileRows / kStep;
  const int thread = threadIdx.x - 32 * kConsumerWarps, lane = threadIdx.x % 32;
  const int row = thread / 8, chunk = thread % 8;
  const uint64_t policy = ReadOncePolicy();
  uint64_t kept;
  if (p.diag & 64) {
    asm volatile("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %0, 0.5;"
                 : "=l"(kept));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(kept));
  }
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
      const int64_t from = kGateUp ? __ldcg(p.order + at) / p.top_k : at;
      source[i] = static_cast<uint32_t>(from * p.in_stride / 8);
    }
    const char* columns = reinterpret_cast<const char*>(p.in) + chunk * 16;
    for (int c = 0; c < p.column_tiles; ++c, columns += 256, weights += kTileBytes) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      if (thread < 32) {
        if (lane == 0) BarrierExpectBytes(ring.Full(), p.diag & 2 ? 0 : strips * kTileBytes);
        __syncwarp();
        if (lane < strips && !(p.diag & 2)) {
          CopyBulk(ring.weights + ring.stage * kWeightBytes + lane * kTileBytes, weights,
                   kTileBytes, ring.Full(), policy);
        }
      }
      const uint32_t to = to_row + ring.stage * kInputBytes;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count || p.diag & 1) break;
        const char* from = columns + static_cast<uint64_t>(source[i]) * 16;
        if (p.diag & 96) {
          Copy16Kept(to + i * kStep * 128, from, kept);
          Copy16Kept(to + i * kStep * 128 + half_bytes, from + 128, kept);
          continue;
        }
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
  int32_t entry[kWideTileRows];  // gate/up: sorted row; down: t * k + j
  float weight[kWideTileRows];
};

// A warp's strip of a piece of gate/up.
template <int kN>
__device__ __forceinline__ void StoreMiddle(const WideParams& p,
                                            const MoeTile& tile,
                                            int strip,
                                            const Targets& targets,
                                            const float (&acc)[kN / 2]) {
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 4; ++i) {
    const int row = i / 2 * 8 + lane % 4 * 2 + i % 2;
    if (row >= tile.count) continue;
    const float low = acc[i / 2 * 4 + i % 2], high = acc[i / 2 * 4 + 2 + i % 2];
    __nv_bfloat16* out = p.out + static_cast<int64_t>(targets.entry[row]) * p.out_stride;
    // Column strip * 8 + g in matrix order.
    out[strip / 4 * 32 + g / 2 * 8 + strip % 4 * 2 + g % 2] =
        __float2bfloat16_rn(SiluTimes(low * kWidenUndo, high * kWidenUndo));
  }
}

// Four 8x8 matrices of bf16, each transposed; lane l gives the address of row l % 8 of matrix l
// / 8.
__device__ __forceinline__ void StoreTransposed(uint32_t address, const uint32_t (&m)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
      : "memory");
}

__device__ __forceinline__ uint32_t PackPair(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// A warpgroup's eight strips of a piece of down: 64 columns of either half of a share, 16 rows at a
// time through shared memory, so that lines are written whole.
template <int kN>
__device__ __forceinline__ void StoreShares(const WideParams& p,
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
        pairs[m] = PackPair(acc[block][at] * targets.weight[row],
                            acc[block][at + 1] * targets.weight[row + 1]);
      }
      StoreTransposed(to + buffer + block * 64, pairs);
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
template <bool kGateUp, int kN>
__device__ __forceinline__ void MultiplyPiece(
    const WideParams& p, const MoeTile& tile, int first_strip, const Targets& targets, Ring& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int strip_in_piece = warp / 4 * 8 + warp % 4;  // and the fourth after it
  float acc[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) acc[0][i] = acc[1][i] = 0;
  uint32_t a[2][4][4];
  for (int c = 0; c < p.column_tiles; ++c) {
    BarrierWait(ring.Full(), ring.parity);
    if (!(p.diag & 16)) asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
  if constexpr (kGateUp) {
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int strip = first_strip + strip_in_piece + 4 * block;
      if (strip < p.strips) StoreMiddle<kN>(p, tile, strip, targets, acc[block]);
    }
  } else {
    StoreShares<kN>(p, tile, first_strip, targets, ring.out, acc);
  }
}

__device__ int FirstUnit(const WideParams& p, int team, int units_per_tile) {
  const int2 start = __ldcg(reinterpret_cast<const int2*>(p.starts) + team);
  return start.x * units_per_tile +
         static_cast<int>(static_cast<int64_t>(start.y) * units_per_tile >> 16);
}

template <bool kGateUp>
__global__ void __launch_bounds__(kThreads, 1)
    WideProductKernel(const __grid_constant__ WideParams p) {
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
    Produce<kGateUp>(p, first, last, units_per_tile, ring);
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
          const int entry = kGateUp ? at : __ldcg(p.order + at);
          targets[buffer].entry[threadIdx.x] = entry;
          if (!kGateUp) {
            targets[buffer].weight[threadIdx.x] = __ldg(p.route_weights + entry) * kWidenUndo;
          }
        }
        asm volatile("bar.sync 1, %0;" ::"n"(32 * kConsumerWarps) : "memory");
      }
      const int columns = p.diag & 4 ? 32 : Columns(tile.count);
      switch (columns) {
        case 32:
          MultiplyPiece<kGateUp, 32>(p, tile, strip, targets[buffer], ring);
          break;
        case 48:
          MultiplyPiece<kGateUp, 48>(p, tile, strip, targets[buffer], ring);
          break;
        case 64:
          MultiplyPiece<kGateUp, 64>(p, tile, strip, targets[buffer], ring);
          break;
        case 80:
          MultiplyPiece<kGateUp, 80>(p, tile, strip, targets[buffer], ring);
          break;
        case 96:
          MultiplyPiece<kGateUp, 96>(p, tile, strip, targets[buffer], ring);
          break;
        case 112:
          MultiplyPiece<kGateUp, 112>(p, tile, strip, targets[buffer], ring);
          break;
        default:
          MultiplyPiece<kGateUp, 128>(p, tile, strip, targets[buffer], ring);
      }
    }
  }
}

constexpr int kOrderThreads = 128;

// x in matrix order; a thread takes 32 columns of a row.
__global__ void __launch_bounds__(kOrderThreads) MatrixOrderKernel(const __nv_bfloat16* x,
                                                                   int64_t x_stride,
                                                                   __nv_bfloat16* out,
                                                                   int32_t hidden) {
  const int column = (blockIdx.x * kOrderThreads + threadIdx.x) * 32;
  AllowNextKernel();
  // The routing let this kernel start only when all before it had ended, and does not touch x.
  if (column < hidden) {
    const uint4* from = reinterpret_cast<const uint4*>(x + blockIdx.y * x_stride + column);
    uint4* to = reinterpret_cast<uint4*>(out + static_cast<int64_t>(blockIdx.y) * hidden + column);
    const uint4 a = from[0], b = from[1], c = from[2], d = from[3];
    to[0] = make_uint4(a.x, b.x, c.x, d.x);
    to[1] = make_uint4(a.y, b.y, c.y, d.y);
    to[2] = make_uint4(a.z, b.z, c.z, d.z);
    to[3] = make_uint4(a.w, b.w, c.w, d.w);
  }
  WaitForEarlierKernels();  // so that whoever waits for this kernel has waited for the routing
}

template <bool kGateUp>
Status Launch(const char* what, const WideParams& params, cudaStream_t stream) {
  const auto kernel = WideProductKernel<kGateUp>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) {
    return Status(Code::kInternal, std::string(what) + ": " + cudaGetErrorString(error));
  }
  BT_ASSIGN_OR_RETURN(const int32_t teams, MoeBlocks(MoeForm::kWide));
  return LaunchOverlapped(what, kernel, dim3(teams * kTeam), dim3(kThreads), kSharedBytes, stream,
                          1, params);
}

}  // namespace

Status LaunchMoeWideGateUp(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoePlan& plan,
                           cudaStream_t stream) {
  const int columns = kOrderThreads * 32;
  BT_RETURN_IF_ERROR(LaunchOverlapped("MoE activations in matrix order", MatrixOrderKernel,
                                      dim3((shape.hidden + columns - 1) / columns, args.tokens),
                                      dim3(kOrderThreads), 0, stream, 1, args.x, args.x_stride,
                                      plan.ordered, shape.hidden));
  if (const char* gate = std::getenv("BT_MOE_GATE"); gate != nullptr && *gate == '4') {
    return LaunchMoeGateUpSixteen(shape, args, plan, stream);
  }
  if (const char* gate = std::getenv("BT_MOE_GATE"); gate == nullptr || *gate == '2')
    return LaunchMoeGateUpFour(shape, args, plan, stream);
  WideParams p = {};
  p.weights = static_cast<const char*>(args.gate_up);
  p.slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden);
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  p.starts = plan.starts;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.in = plan.ordered;
  p.in_stride = shape.hidden;
  p.out = plan.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  p.diag = std::getenv("BT_MOE_DIAG") != nullptr ? std::atoi(std::getenv("BT_MOE_DIAG")) : 0;
  return Launch<true>("MoE gate/up, wide", p, stream);
}

Status LaunchMoeWideDown(const MoeShape& shape,
                         const MoeInt4Args& args,
                         const MoePlan& plan,
                         cudaStream_t stream) {
  WideParams p = {};
  p.weights = static_cast<const char*>(args.down);
  p.slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate);
  p.strips = shape.hidden / 16;
  p.column_tiles = shape.intermediate / 128;
  p.starts = plan.starts;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.in = plan.middle;
  p.in_stride = shape.intermediate;
  p.out = plan.shares;
  p.out_stride = shape.hidden;
  p.top_k = shape.top_k;
  p.route_weights = args.weights;
  return Launch<false>("MoE down, wide", p, stream);
}

}  // namespace baltoro::cuda
