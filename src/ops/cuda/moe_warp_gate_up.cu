// The gate/up product of a middling number of rows an expert, with SiLU * mul, by the matrix
// instruction of one warp: m16n8k16, weights as its rows. A block of it is half the size of one of
// the wide form, so that a multiprocessor has two that do not wait for the same stages.
//
// A block takes 256 rows of weights (16 strips) by the tokens of one tile, eight warps two strips
// each. Four more warps fill a ring: weights by bulk copies, the tile's rows of x 16 bytes a
// thread, as they are. Pieces are dealt out back and forth, those with most rows first.
//
// Floor: the longer of the weights' bytes over the card's read bandwidth and the products over the
// rate of the instruction, about 0.6 of the card's bf16 matrix rate.

#include <algorithm>

#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_ask.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_int4_layout.h"
#include "ops/cuda/moe_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int kTileBytes = static_cast<int>(kInt4TileBytes);
constexpr int kWarps = 8;
constexpr int kProducers = 128;
constexpr int kThreads = 32 * kWarps + kProducers;
constexpr int kStrips = 2 * kWarps;  // of a piece
constexpr int kWeightBytes = kStrips * kTileBytes;
static_assert(kStrips == kBoxStrips && kWeightBytes == kBoxBytes);
constexpr int kRowBytes = 256;  // 128 columns
constexpr int kTileRows = kMiddlingTileRows;
constexpr int kBlocks = 2;  // of a multiprocessor
constexpr int kStageBytes = kWeightBytes + kTileRows * kRowBytes;
constexpr int kStages = 3;
constexpr int kSharedBytes = kStages * kStageBytes;

struct GateUpParams {
  CUtensorMap map;  // of the weights
  int32_t strips;
  int32_t column_tiles;
  const int32_t* num_tiles;
  const MoeTile* tiles;
  const int32_t* order;
  const __nv_bfloat16* in;
  int64_t in_stride;
  __nv_bfloat16* out;  // in matrix order
  int32_t out_stride;
  int32_t top_k;
  int32_t stages, stage_bytes;  // not as constants: with those the compiler runs out of registers
};

// The block's pieces, one a turn.
struct Pieces {
  int per_tile, total;
  __device__ explicit Pieces(const GateUpParams& p)
      : per_tile((p.strips + kStrips - 1) / kStrips), total(__ldcg(p.num_tiles) * per_tile) {}
  __device__ int Turns() const {
    return (total + static_cast<int>(gridDim.x) - 1) / static_cast<int>(gridDim.x);
  }
  // False where there is none.
  __device__ bool Get(const GateUpParams& p, int turn, MoeTile* tile, int* strip) const {
    const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
    const int at = turn * blocks + (turn % 2 == 0 ? block : blocks - 1 - block);
    if (at >= total) return false;
    const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + at / per_tile);
    *tile = {raw.x, raw.y, raw.z, 0};
    *strip = at % per_tile * kStrips;
    return true;
  }
};

struct Ring {
  uint32_t memory, full, empty;
  int stages, stage_bytes;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Weights() const { return memory + stage * stage_bytes; }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

// Sixteen threads a row; neighbouring rows have the halves of each 128 bytes the other way round,
// so that the loads of a warp's operand meet all banks.
__device__ void Produce(const GateUpParams& p, const Pieces& pieces, Ring ring) {
  constexpr int kStep = kProducers / 16, kRows = kTileRows / kStep;
  const int thread = threadIdx.x - 32 * kWarps;
  const int row = thread / 16, chunk = thread % 16;
  const uint64_t policy = ReadOncePolicy();
  const uint32_t in_stage = kWeightBytes + row * kRowBytes + ((chunk ^ (row & 1) << 2) << 4);
  const int turns = pieces.Turns();
  for (int turn = 0; turn < turns; ++turn) {
    MoeTile tile;
    int strip;
    if (!pieces.Get(p, turn, &tile, &strip)) break;
    const int first_row = tile.slot * p.strips + strip;  // of the map
    uint32_t source[kRows];                              // in 16 bytes
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = tile.begin + min(row + kStep * i, tile.count - 1);
      source[i] = static_cast<uint32_t>(__ldcg(p.order + at) / p.top_k * p.in_stride / 8);
    }
    const char* columns = reinterpret_cast<const char*>(p.in) + chunk * 16;
    for (int c = 0; c < p.column_tiles; ++c, columns += kRowBytes) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      const uint32_t to = ring.Weights();
      if (thread == 0) AskForBox(&p.map, to, ring.Full(), c, first_row, policy);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        Copy16(to + in_stage + i * kStep * kRowBytes,
               columns + static_cast<uint64_t>(source[i]) * 16);
      }
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
  }
}

// A warp: two strips by kN times eight tokens.
template <int kN>
__device__ __forceinline__ void Multiply(const GateUpParams& p,
                                         const MoeTile& tile,
                                         int first_strip,
                                         Ring& ring) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float acc[2][kN][4] = {};
  const uint32_t in_stage = 2 * warp * kTileBytes;
  const uint32_t row = kWeightBytes + lane / 4 * kRowBytes + lane % 4 * 16;
  const uint32_t flip = lane / 4 % 2 * 64;
  for (int c = 0; c < p.column_tiles; ++c) {
    BarrierWait(ring.Full(), ring.parity);
    const uint32_t own = ring.Weights() + in_stage, rows = ring.Weights() + row;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint4 words[2];
      uint2 scales[2];
#pragma unroll
      for (int s = 0; s < 2; ++s) {
        words[s] = LoadShared4(own + s * kTileBytes + half * 512 + lane * 16);
        scales[s] = LoadShared2(own + s * kTileBytes + 1024 + lane / 4 * 16 + half * 8);
      }
#pragma unroll
      for (int jj = 0; jj < 2; ++jj) {
        uint32_t a[2][2][4];
#pragma unroll
        for (int s = 0; s < 2; ++s) {
          const uint32_t scale = jj == 0 ? scales[s].x : scales[s].y;
          const uint32_t low = jj == 0 ? words[s].x : words[s].z;
          const uint32_t high = jj == 0 ? words[s].y : words[s].w;
          const WidenScale scale_low = LoadScale(scale, false);
          const WidenScale scale_high = LoadScale(scale, true);
#pragma unroll
          for (int step = 0; step < 2; ++step) {
            a[s][step][0] = WidenPair(low, 2 * step, scale_low);
            a[s][step][1] = WidenPair(high, 2 * step, scale_high);
            a[s][step][2] = WidenPair(low, 2 * step + 1, scale_low);
            a[s][step][3] = WidenPair(high, 2 * step + 1, scale_high);
          }
        }
#pragma unroll
        for (int n = 0; n < kN; ++n) {
          const uint4 x = LoadShared4(rows + n * 8 * kRowBytes + half * 128 + (jj * 64 ^ flip));
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            MultiplyAdd(acc[s][n], a[s][0][0], a[s][0][1], a[s][0][2], a[s][0][3], x.x, x.y);
          }
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            MultiplyAdd(acc[s][n], a[s][1][0], a[s][1][1], a[s][1][2], a[s][1][3], x.z, x.w);
          }
        }
      }
    }
    hopper::FinishLoads();
    __syncwarp();
    if (lane == 0) BarrierArrive(ring.Empty());
    ring.Next();
  }
  // This lane has columns 8 strip + g of two tokens; with those of g ^ 1 and both strips it stores
  // four neighbours, in matrix order, of one token.
  const int g = lane / 4, strip = first_strip + 2 * warp;
  if (strip >= p.strips) return;  // strips come in pairs
  const bool odd = g % 2 != 0;
  __nv_bfloat16* out = p.out + static_cast<int64_t>(tile.begin) * p.out_stride + strip / 4 * 32 +
                       g / 2 * 8 + strip % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    uint32_t pairs[2];
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      const float(&v)[4] = acc[s][n];
      const float first = FastSiluTimes(v[0] * kWidenUndo, v[2] * kWidenUndo);
      const float second = FastSiluTimes(v[1] * kWidenUndo, v[3] * kWidenUndo);
      const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
      const __nv_bfloat162 pair =
          odd ? __floats2bfloat162_rn(other, second) : __floats2bfloat162_rn(first, other);
      pairs[s] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    const int at = n * 8 + lane % 4 * 2 + odd;
    if (at >= tile.count) continue;
    *reinterpret_cast<uint2*>(out + at * p.out_stride) = make_uint2(pairs[0], pairs[1]);
  }
}

__global__ void __launch_bounds__(kThreads, kBlocks)
    WarpGateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ __align__(128) char memory[];
  __shared__ uint64_t barriers[2 * kStages];
  Ring ring;
  ring.memory = SharedAddress(memory);
  ring.full = SharedAddress(barriers);
  ring.empty = ring.full + 8 * kStages;
  ring.stages = p.stages;
  ring.stage_bytes = p.stage_bytes;
  if (threadIdx.x == 0) {
    for (int s = 0; s < p.stages; ++s) {
      BarrierInit(ring.full + 8 * s, 1 + kProducers);
      BarrierInit(ring.empty + 8 * s, kWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  const Pieces pieces(p);
  // Registers move from the producers to the others; together they stay at 80 a thread.
  if (threadIdx.x >= 32 * kWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 32;");
    Produce(p, pieces, ring);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 104;");
  const int turns = pieces.Turns();
  for (int turn = 0; turn < turns; ++turn) {
    MoeTile tile;
    int strip;
    if (!pieces.Get(p, turn, &tile, &strip)) return;
    const int tiles = (tile.count + 7) / 8;
    switch (tiles) {
      case 1:
        Multiply<1>(p, tile, strip, ring);
        break;
      case 2:
        Multiply<2>(p, tile, strip, ring);
        break;
      case 3:
        Multiply<3>(p, tile, strip, ring);
        break;
      case 4:
        Multiply<4>(p, tile, strip, ring);
        break;
      default:
        Multiply<5>(p, tile, strip, ring);
    }
  }
}

}  // namespace

int32_t MoeWarpTileRows(const MoeShape& shape, int32_t tokens) {
  // Measured, docs/measured/cuda-moe.md.
  const int64_t entries = static_cast<int64_t>(tokens) * shape.top_k;
  if (entries > 29 * static_cast<int64_t>(shape.slots)) return 0;
  if ((MoeTrial() & 3) == 3 && entries <= 22 * static_cast<int64_t>(shape.slots)) return 32;
  return kMiddlingTileRows;
}

Status LaunchMoeWarpGateUp(const MoeShape& shape,
                           const MoeInt4Args& args,
                           const MoePlan& plan,
                           cudaStream_t stream) {
  GateUpParams p = {};
  BT_RETURN_IF_ERROR(MakeWeightMap(shape, args.gate_up, p.map));
  p.strips = 2 * shape.intermediate / 16;
  p.column_tiles = shape.hidden / 128;
  p.num_tiles = plan.num_tiles;
  p.tiles = plan.tiles;
  p.order = plan.order;
  p.in = args.x;
  p.in_stride = args.x_stride;
  p.out = plan.middle;
  p.out_stride = shape.intermediate;
  p.top_k = shape.top_k;
  p.stages = kStages;
  p.stage_bytes = kStageBytes;
  const cudaError_t error = cudaFuncSetAttribute(
      WarpGateUpKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  if (error != cudaSuccess) {
    return Status(Code::kInternal,
                  std::string("MoE gate/up by warps: ") + cudaGetErrorString(error));
  }
  BT_ASSIGN_OR_RETURN(const int32_t multiprocessors, MoeMultiprocessors());
  return LaunchOverlapped("MoE gate/up by warps", WarpGateUpKernel, dim3(kBlocks * multiprocessors),
                          dim3(kThreads), kSharedBytes, stream, 1, p);
}

}  // namespace baltoro::cuda
