// The bank for one token, where all is latency, in two kernels: of shapes, cards and steps that
// int4_one_launch1.cu does not take (sums for a norm, experts that are chosen elsewhere).
//
// Gate/up: a block has two strips of one expert, asked for at once when the routing is done. Where
// the experts are not chosen yet (MoeChoice), one warp of each block of both kernels does that.
//
// The end: the down products of the experts, their sum, and the shared experts' second product, in
// one kernel. A block makes 64 columns of the result from four strips of each expert's matrix, an
// expert a warp. All weights are asked for before the wait for gate/up, which has started only once
// the routing was done. Floor: the bytes of the matrices.

#include "ops/cuda/experts/one_launch/int4_one_token_device.cuh"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/rows/norm_begun_device.cuh"

namespace baltoro::cuda {
namespace {

using namespace int4_one_launch;  // NOLINT: these kernels' parts

constexpr int kThreads = 256;
constexpr int kSharedGroups = 8;  // of 32 columns of the shared experts' matrix at most

struct Params {
  const int32_t* ids;
  const float* weights;
  const int32_t* slot_of;
  int32_t experts, slots, top_k, hidden;
  const char* down;
  int64_t slot_bytes;
  const __nv_bfloat16* middle;  // [k, 256]
  const __nv_bfloat16* shared;  // [2 I']
  const __nv_bfloat16* shared_down;
  int32_t shared_intermediate;
  float* out;
  BegunNormArgs norm;  // instead of `out`
  MoeChoice choice;
};

struct Shared {
  float sums[kExperts][kStrips * 16];  // by row of a strip
  __nv_bfloat16 gated[kSharedGroups * 32];
  float squares[kThreads / 32];
  float weights[kExperts];
  uint32_t held;  // bits of the experts that lie here
  uint64_t arrived;
};

template <bool kChooses>
__global__ void __launch_bounds__(kThreads) SingleEndKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char tiles[];
  __shared__ Shared shared;
  __shared__ ChoiceShared choice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_strip = static_cast<int>(blockIdx.x) * kStrips;
  const uint32_t barrier = SharedAddress(&shared.arrived);
  // Lane j of every warp knows where expert j lies; -1: not here.
  int slot = -1;
  float weight = 0;
  uint32_t held = 0;
  if constexpr (kChooses) {
    if (warp == 0) {
      float4 bias[3];
      LoadChoiceBias(p.choice, bias);
      Choose(p.choice, bias, choice);
      if (lane < p.top_k) slot = SlotOf(p, choice.ids[lane]);
    }
  } else if (lane < p.top_k) {
    weight = __ldcg(p.weights + lane);
    slot = SlotOf(p, __ldcg(p.ids + lane));
  }
  held = __ballot_sync(~0u, slot >= 0);
  if (warp == 0) {
    if (lane == 0) {
      BarrierInit(barrier, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      BarrierExpectBytes(barrier, __popc(held) * kExpertBytes);
    }
    __syncwarp();
    if (slot >= 0) {
      CopyBulk(SharedAddress(tiles) + lane * kExpertBytes,
               p.down + slot * p.slot_bytes +
                   static_cast<int64_t>(first_strip) * (kColumnTiles * kTileBytes),
               kExpertBytes, barrier, ReadOncePolicy());
    }
    if constexpr (kChooses) {
      weight = ChoiceWeight(p.choice, choice);
      if (lane < p.top_k) shared.weights[lane] = weight;
      if (lane == 0) shared.held = held;
    }
  }
  // Warp w < 4 has the shared experts' rows of strip w, the others those half a matrix further on.
  const int row = (first_strip + warp % kStrips) * 8 + (warp < kStrips ? 0 : p.hidden / 2);
  const int groups = p.shared_intermediate / 32;
  uint4 w[kSharedGroups];
#pragma unroll
  for (int i = 0; i < kSharedGroups; ++i) {
    w[i] = make_uint4(0, 0, 0, 0);
    if (i >= groups) continue;
    w[i] = LoadOnce(p.shared_down + static_cast<int64_t>(row + lane / 4) * p.shared_intermediate +
                    i * 32 + lane % 4 * 8);
  }
  const bool writes = lane < 4, adds = p.norm.residual != nullptr;
  const int column = row + 2 * lane;
  float2 norm_weight = make_float2(0, 0), residual = norm_weight;
  if (adds && writes) norm_weight = __ldg(reinterpret_cast<const float2*>(p.norm.weight + column));
  __syncthreads();  // the barrier is there
  if constexpr (kChooses) {
    held = shared.held;
    if (lane < p.top_k) weight = shared.weights[lane];
  }
  WaitForEarlierKernels();
  AllowNextKernel();

  if (kChooses && blockIdx.x == 0 && warp == 0 && lane < p.top_k) {
    p.choice.ids[lane] = choice.ids[lane];
    p.choice.weights[lane] = weight;
  }
  if (adds && writes) residual = __ldcg(reinterpret_cast<const float2*>(p.norm.residual + column));
  // The token is the first column of the matrix instruction; the others are empty.
  uint4 x[kColumnTiles][1][4];
#pragma unroll
  for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[c][0][j] = make_uint4(0, 0, 0, 0);
      if (lane >= 4 || (held >> warp & 1) == 0) continue;
      x[c][0][j] = __ldcg(reinterpret_cast<const uint4*>(p.middle + warp * kIntermediate + c * 128 +
                                                         j * 32 + lane * 8));
    }
  }
  for (int i = threadIdx.x; i < p.shared_intermediate; i += kThreads) {
    const float gate = __bfloat162float(__ldcg(p.shared + i));
    const float up = __bfloat162float(__ldcg(p.shared + p.shared_intermediate + i));
    shared.gated[i] = __float2bfloat16_rn(SiluTimes(gate, up));
  }
  BarrierWait(barrier, 0);
  if (held >> warp & 1) {
    float acc[kStrips][1][4] = {};
    const uint32_t own = SharedAddress(tiles) + warp * kExpertBytes;
#pragma unroll
    for (int c = 0; c < kColumnTiles; ++c) {
      uint32_t at[kStrips];
#pragma unroll
      for (int s = 0; s < kStrips; ++s) at[s] = own + (s * kColumnTiles + c) * kTileBytes;
      MultiplyTiles<kStrips, 1, 0, 4>(acc, at, x[c], lane);
    }
    const float factor = __shfl_sync(~0u, weight, warp) * kWidenUndo;
    if (lane % 4 == 0) {
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        // Rounded as shares are that go through memory.
        shared.sums[warp][s * 16 + lane / 4] =
            __bfloat162float(__float2bfloat16_rn(acc[s][0][0] * factor));
        shared.sums[warp][s * 16 + 8 + lane / 4] =
            __bfloat162float(__float2bfloat16_rn(acc[s][0][2] * factor));
      }
    }
  }
  __syncthreads();
  float sums[2][4] = {};
#pragma unroll
  for (int i = 0; i < kSharedGroups; ++i) {
    if (i >= groups) break;
    uint4 v = make_uint4(0, 0, 0, 0);
    if (lane < 4) v = *reinterpret_cast<const uint4*>(&shared.gated[i * 32 + lane * 8]);
    MultiplyAdd(sums[0], v.x, 0, v.y, 0, w[i].x, w[i].y);
    MultiplyAdd(sums[1], v.z, 0, v.w, 0, w[i].z, w[i].w);
  }
  if (!writes && !adds) return;
  const int in_block = warp % kStrips * 16 + (warp < kStrips ? 0 : 8) + 2 * (lane % 4);
  float2 routed = make_float2(0, 0);
#pragma unroll
  for (int j = 0; j < kExperts; ++j) {
    if ((held >> j & 1) == 0) continue;
    routed.x += shared.sums[j][in_block];
    routed.y += shared.sums[j][in_block + 1];
  }
  const float2 sum =
      make_float2(sums[0][0] + sums[1][0] + routed.x, sums[0][1] + sums[1][1] + routed.y);
  if (!adds) {
    *reinterpret_cast<float2*>(p.out + column) = sum;
    return;
  }
  const float squares =
      SumOfFour(writes ? AddToNorm(p.norm, 0, column, residual, sum, norm_weight) : 0);
  if (lane == 0) shared.squares[warp] = squares;
  __syncthreads();
  if (threadIdx.x != 0) return;
  float all = 0;
#pragma unroll
  for (const float one : shared.squares) all += one;
  WriteSquares(p.norm, 0, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x), all);
}

struct GateUpParams {
  const int32_t* ids;
  const int32_t* slot_of;
  int32_t experts, slots, column_tiles, intermediate;
  const char* gate_up;
  int64_t slot_bytes;
  const __nv_bfloat16* x;
  __nv_bfloat16* middle;  // [k, I]
  MoeChoice choice;
};

constexpr int kWarps = kThreads / 32;
constexpr int kChunksMax = 8;  // of a tile a warp, each with a barrier

// Of a block. With two there is room beside it on the multiprocessor for a block of the end, which
// asks for its weights while these come.
constexpr int kOf = 2;

// Grid: strips by kOf, experts of the token.
template <bool kChooses>
__global__ void __launch_bounds__(kThreads* kOf, 1)
    SingleGateUpKernel(const __grid_constant__ GateUpParams p) {
  extern __shared__ __align__(128) char tiles[];
  __shared__ uint64_t arrived[kChunksMax];
  __shared__ float sums[kWarps * kOf][16];
  __shared__ ChoiceShared choice;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int first_strip = static_cast<int>(blockIdx.x) * kOf, entry = blockIdx.y;
  const int chunks = (p.column_tiles + kWarps - 1) / kWarps;
  const int strip_bytes = p.column_tiles * kTileBytes;
  const uint32_t barrier = SharedAddress(arrived), ring = SharedAddress(tiles);
  const uint32_t x_at = ring + kOf * strip_bytes;
  if (threadIdx.x < kChunksMax) BarrierInit(barrier + 8 * threadIdx.x, 1);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  float4 bias[3];
  if (kChooses && warp == 0) LoadChoiceBias(p.choice, bias);
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();  // which reads the routing, or what it is made of, before its wait
  int slot = -1;
  if constexpr (kChooses) {
    if (warp == 0) {
      Choose(p.choice, bias, choice);
      slot = SlotOf(p, choice.ids[entry]);
      __syncwarp();
      if (lane == 0) {
        // The others wait for the first weights, and for this if there are none.
        choice.ids[0] = slot;
        if (slot < 0) BarrierArrive(barrier);
      }
    }
  } else {
    slot = SlotOf(p, __ldcg(p.ids + entry));
    if (slot < 0) return;
  }
  if (threadIdx.x == 0 && slot >= 0) {
    const char* const from =
        p.gate_up + slot * p.slot_bytes + static_cast<int64_t>(first_strip) * strip_bytes;
    const uint32_t x_bytes = p.column_tiles * 256;
    for (int c = 0; c < chunks; ++c) {
      const int first = c * kWarps;
      const uint32_t bytes = min(kWarps, p.column_tiles - first) * kTileBytes;
      BarrierExpectBytes(barrier + 8 * c, kOf * bytes + (c == 0 ? x_bytes : 0));
      if (c == 0) CopyPlain(x_at, p.x, x_bytes, barrier);
#pragma unroll
      for (int s = 0; s < kOf; ++s) {
        const int at = s * strip_bytes + first * kTileBytes;
        CopyBulk(ring + at, from + at, bytes, barrier + 8 * c, ReadOncePolicy());
      }
    }
  }
  const int in_strip = warp % kWarps;
  float acc[1][1][4] = {};
  for (int c = 0; c < chunks; ++c) {
    BarrierWait(barrier + 8 * c, 0);
    if (kChooses && c == 0 && choice.ids[0] < 0) return;
    const int tile = c * kWarps + in_strip;
    if (tile >= p.column_tiles) break;
    // The token is the first column of the matrix instruction; the others are empty.
    uint4 x[1][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      x[0][j] = make_uint4(0, 0, 0, 0);
      if (lane < 4) x[0][j] = LoadShared4(x_at + tile * 256 + j * 64 + lane * 16);
    }
    const uint32_t at[1] = {ring + warp / kWarps * strip_bytes + tile * kTileBytes};
    MultiplyTiles<1, 1, 0, 4>(acc, at, x, lane);
  }
  if (lane % 4 == 0) {
    sums[warp][lane / 4] = acc[0][0][0];
    sums[warp][8 + lane / 4] = acc[0][0][2];
  }
  __syncthreads();
  if (threadIdx.x >= 8 * kOf) return;
  const int s = threadIdx.x / 8, row = threadIdx.x % 8;
  float gate = 0, up = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    gate += sums[s * kWarps + i][row];
    up += sums[s * kWarps + i][8 + row];
  }
  p.middle[entry * p.intermediate + (first_strip + s) * 8 + row] =
      __float2bfloat16_rn(SiluTimes(gate * kWidenUndo, up * kWidenUndo));
}

// What says which experts the token has.
Regions RoutingOf(const MoeShape& shape, const MoeInt4Args& args) {
  if (args.choice.logits != nullptr) return RegionOf(args.choice.logits, args.choice.experts);
  return {RegionOf(args.ids, shape.top_k), RegionOf(args.weights, shape.top_k)};
}

}  // namespace

Status LaunchMoeOneTokenGateUp(const MoeShape& shape,
                               const MoeInt4Args& args,
                               const MoeWorkspace& space,
                               const LaunchStream& stream) {
  const GateUpParams p = {.ids = args.ids,
                          .slot_of = args.slot_of,
                          .experts = args.experts,
                          .slots = shape.slots,
                          .column_tiles = shape.hidden / 128,
                          .intermediate = shape.intermediate,
                          .gate_up = static_cast<const char*>(args.gate_up),
                          .slot_bytes = Int4PackedBytes(2 * shape.intermediate, shape.hidden),
                          .x = args.x,
                          .middle = space.middle,
                          .choice = args.choice};
  const int bytes = p.column_tiles * (kOf * kTileBytes + 256);
  const auto kernel =
      args.choice.logits != nullptr ? SingleGateUpKernel<true> : SingleGateUpKernel<false>;
  cudaError_t error = AllowShared(kernel, bytes);
  // Else the multiprocessor would have to be empty before the end's blocks find their room.
  if (error == cudaSuccess) {
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared);
  }
  if (error != cudaSuccess) return Status(Code::kInternal, cudaGetErrorString(error));
  Regions reads = RegionOf(args.x, shape.hidden);
  reads.Add(RoutingOf(shape, args));
  const LaunchNote note =
      WaitsFirst("MoE gate/up of one token",
                 RegionOf(space.middle, int64_t{shape.top_k} * shape.intermediate), reads);
  return LaunchOverlapped(
      note, kernel,
      dim3(static_cast<unsigned>(shape.intermediate / 8 / kOf), static_cast<unsigned>(shape.top_k)),
      dim3(kThreads * kOf), static_cast<size_t>(bytes), stream, 1, p);
}

Status LaunchMoeOneTokenEnd(const MoeShape& shape,
                            const MoeInt4Args& args,
                            const MoeWorkspace& space,
                            const LaunchStream& stream) {
  const Params p = {.ids = args.ids,
                    .weights = args.weights,
                    .slot_of = args.slot_of,
                    .experts = args.experts,
                    .slots = shape.slots,
                    .top_k = shape.top_k,
                    .hidden = shape.hidden,
                    .down = static_cast<const char*>(args.down),
                    .slot_bytes = Int4PackedBytes(shape.hidden, shape.intermediate),
                    .middle = space.middle,
                    .shared = args.shared,
                    .shared_down = args.shared_down,
                    .shared_intermediate = args.shared_intermediate,
                    .out = args.out,
                    .norm = args.norm,
                    .choice = args.choice};
  constexpr int kBytes = kExperts * kExpertBytes;
  const auto kernel =
      args.choice.logits != nullptr ? SingleEndKernel<true> : SingleEndKernel<false>;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (error != cudaSuccess) return Status(Code::kInternal, cudaGetErrorString(error));
  LaunchNote note = "MoE end of one token";
  note.early_reads = RoutingOf(shape, args);
  return LaunchOverlapped(note, kernel, dim3(static_cast<unsigned>(shape.hidden / (16 * kStrips))),
                          dim3(kThreads), kBytes, stream, 1, p);
}

}  // namespace baltoro::cuda
