// A block has 128 rows of x and 128 of w: a warp fetches 64 columns of both at a time into a ring
// of three stages, two warpgroups multiply, 64 rows of x each. Two blocks stand on a
// multiprocessor, so that the end of one is behind the products of the other. Two blocks that are
// neighbours along the longer side are a cluster: each fetches half of the rows of the shorter side
// for both. Clusters that follow each other share the rows of the longer side: those are read from
// memory once, the shorter side stays in the L2.
//
// Sums go through the ring to the end, where a warp has whole rows of the tile: what it reads there
// it asks for eight rows at a time, and what a column needs it has in registers.

#include <cuda.h>
#include <cuda_bf16.h>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/launch/regions.h"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/vision/picture_product.h"

namespace baltoro::cuda {
namespace {

using namespace hopper;  // NOLINT: the instructions that this file is written in

constexpr int kTile = 128;  // rows of x, and of w
constexpr int kStep = 64;   // columns of both
constexpr int kOperandBytes = kTile * kStep * 2;
constexpr int kStageBytes = 2 * kOperandBytes;
constexpr int kStages = 3;
constexpr int kGroupBytes = 64 * kStep * 2;  // rows of x of a warpgroup
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kSharedBytes = 1024 + kStages * kStageBytes;
constexpr int kCluster = 2;
constexpr int kShareRows = kTile / kCluster;  // of the shared operand, that each block fetches
constexpr int kPitch = (kTile + 8) * 4;  // of a row of sums: half a warp's stores use all banks
constexpr int kRowsAtOnce = 8;           // of a warp, at the end
static_assert(kTile * kPitch <= kStages * kStageBytes);

struct Params {
  void* out;
  int64_t out_stride;
  const float* bias;
  int rows, n, steps;
  int row_tiles, column_tiles;
  bool shares_x;  // blocks of a cluster have the same rows of x, else of w
  bool fours;     // fours of a row of out are aligned
  PictureRotation rotation;
};

struct Maps {
  CUtensorMap x, w;
};

struct Barriers {
  uint64_t full[kStages];
  uint64_t empty[kStages];
};

__device__ __forceinline__ float GeluTanh(float x) {
  // x / 2 (1 + tanh(u)) = x / (1 + exp(-2 u))
  constexpr float kTwice = 2 * 0.7978845608028654f * 1.4426950408889634f;  // to log2
  return __fdividef(x, 1 + Exp2(-kTwice * (x + 0.044715f * x * x * x)));
}

__device__ __forceinline__ float GeluErf(float x) {
  return 0.5f * x * (1 + erff(x * 0.70710678118654752f));
}

// Four columns of out, `first` a multiple of four: what they are finished with.
template <ProductEnd kEnd>
struct Columns {
  int first;
  int count;  // of them that there are
  int angle;  // of kRotate: their entry in a row of the tables
  float bias[4] = {};

  __device__ __forceinline__ Columns(const Params& p, int column)
      : first(column), count(min(max(p.n - column, 0), 4)) {
    if constexpr (kEnd == ProductEnd::kRotate) angle = first % p.rotation.head / 4;
    if constexpr (kEnd != ProductEnd::kTurned) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) bias[i] = __ldg(p.bias + first + i);
      }
    }
  }

  // What row `row` of an f32 out has there.
  __device__ __forceinline__ float4 Before(const Params& p, int row) const {
    const float* const from = static_cast<const float*>(p.out) + row * p.out_stride + first;
    if (p.fours && count == 4) return *reinterpret_cast<const float4*>(from);
    float v[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i < count) v[i] = from[i];
    }
    return make_float4(v[0], v[1], v[2], v[3]);
  }

  // Writes row `row` of out from its sums, and of kAdd from what was there.
  __device__ __forceinline__ void Finish(const Params& p, int row, float4 sums, float4 was) const {
    const float row_bias = kEnd == ProductEnd::kTurned ? __ldg(p.bias + row) : 0;
    float v[4] = {sums.x, sums.y, sums.z, sums.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] += kEnd == ProductEnd::kTurned ? row_bias : bias[i];
    if constexpr (kEnd == ProductEnd::kRotate) {
      const uint32_t place = p.rotation.places[row];
      Turn(p.rotation, place & 0xFFFF, v[0], v[1]);
      Turn(p.rotation, place >> 16, v[2], v[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kEnd == ProductEnd::kGeluTanh) v[i] = GeluTanh(v[i]);
      if constexpr (kEnd == ProductEnd::kGeluErf) v[i] = GeluErf(v[i]);
    }
    const int64_t to = row * p.out_stride + first;
    if constexpr (kEnd == ProductEnd::kStore || kEnd == ProductEnd::kAdd) {
      const float before[4] = {was.x, was.y, was.z, was.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] = kEnd == ProductEnd::kAdd ? before[i] + v[i] : v[i];
      float* const out = static_cast<float*>(p.out) + to;
      if (p.fours && count == 4) {
        *reinterpret_cast<float4*>(out) = make_float4(v[0], v[1], v[2], v[3]);
        return;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) out[i] = v[i];
      }
    } else {
      auto* const out = static_cast<__nv_bfloat16*>(p.out) + to;
      if (p.fours && count == 4) {
        *reinterpret_cast<uint2*>(out) = make_uint2(PackBf16(v[0], v[1]), PackBf16(v[2], v[3]));
        return;
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i < count) out[i] = __float2bfloat16_rn(v[i]);
      }
    }
  }

 private:
  // A pair of columns, by what a patch at `place` along one side is turned.
  __device__ __forceinline__ void Turn(const PictureRotation& rotation,
                                       uint32_t place,
                                       float& a,
                                       float& b) const {
    const int at = static_cast<int>(place) * (rotation.head / 4) + angle;
    const float cos = __ldg(rotation.cos + at), sin = __ldg(rotation.sin + at);
    const float turned = a * cos - b * sin;
    b = a * sin + b * cos;
    a = turned;
  }
};

// To block `rank` of the cluster. Only reads of shared memory go before.
__device__ __forceinline__ void ArriveInBlock(uint32_t barrier, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(barrier), "r"(rank));
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(there) : "memory");
}

// A box to the same place in all blocks of the cluster, told to the same barrier of each.
__device__ __forceinline__ void CopyBoxToAll(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y) {
  constexpr uint16_t kAll = (1 << kCluster) - 1;
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(0), "h"(kAll)
      : "memory");
}

// Says nothing of what was written; all threads of all blocks call it.
__device__ __forceinline__ void MeetCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

__device__ __forceinline__ void Multiply(float (&sums)[64],
                                         int steps,
                                         Barriers& barriers,
                                         uint32_t ring) {
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int i = 0; i < 64; ++i) sums[i] = 0;
  int stage = 0, last = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int s = 0; s < steps; ++s) {
    hopper::Wait(SharedAddress(&barriers.full[stage]), parity);
    const uint32_t at = ring + stage * kStageBytes;
    const uint64_t x = OperandDescriptor(at + group * kGroupBytes, 0);
    const uint64_t w = OperandDescriptor(at + kOperandBytes, 0);
    Pin(sums);
    FenceProducts();
#pragma unroll
    for (int i = 0; i < kStep / 16; ++i) {
      GroupMultiplyShared<kTile>::Bf16(sums, Advance(x, i * 32), Advance(w, i * 32), 1);
    }
    CommitProducts();
    if (s > 0) {
      WaitProducts<1>();
      if (lane < kCluster) ArriveInBlock(SharedAddress(&barriers.empty[last]), lane);
      if (++last == kStages) last = 0;
    }
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  WaitProducts<0>();
  Pin(sums);
}

// One lane: a block's own rows of the longer side, and its share of the other's.
__device__ __forceinline__ void Feed(const Params& p,
                                     const Maps& maps,
                                     Barriers& barriers,
                                     uint32_t ring,
                                     int rank,
                                     int row_tile,
                                     int column_tile) {
  const bool shares_x = p.shares_x;
  const CUtensorMap* const own = shares_x ? &maps.w : &maps.x;
  const CUtensorMap* const shared = shares_x ? &maps.x : &maps.w;
  const int own_row = (shares_x ? column_tile : row_tile) * kTile;
  const int shared_row = (shares_x ? row_tile : column_tile) * kTile + rank * kShareRows;
  const uint32_t own_to = ring + (shares_x ? kOperandBytes : 0);
  const uint32_t shared_to =
      ring + (shares_x ? 0 : kOperandBytes) + rank * (kOperandBytes / kCluster);
  int stage = 0;
  uint32_t parity = 1;
#pragma unroll 1
  for (int s = 0; s < p.steps; ++s) {
    hopper::Wait(SharedAddress(&barriers.empty[stage]), parity);
    const uint32_t full = SharedAddress(&barriers.full[stage]);
    ArriveExpecting(full, kStageBytes);
    CopyBox(own_to + stage * kStageBytes, own, full, s * kStep, own_row, 0);
    CopyBoxToAll(shared_to + stage * kStageBytes, shared, full, s * kStep, shared_row);
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
}

// By way of `memory`, in which each warp has 16 rows.
template <ProductEnd kEnd>
__device__ __forceinline__ void Finish(
    const Params& p, const float (&sums)[64], unsigned char* memory, int first_row, int column) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned char* const to = memory + lane / 4 * kPitch + lane % 4 * 8;
#pragma unroll
  for (int i = 0; i < 64; i += 2) {
    *reinterpret_cast<float2*>(to + i % 4 / 2 * 8 * kPitch + i / 4 * 32) =
        make_float2(sums[i], sums[i + 1]);
  }
  __syncwarp();
  const Columns<kEnd> columns(p, column + lane * 4);
#pragma unroll 1
  for (int from = 0; from < 16; from += kRowsAtOnce) {
    float4 before[kRowsAtOnce] = {};
    if constexpr (kEnd == ProductEnd::kAdd) {
#pragma unroll
      for (int i = 0; i < kRowsAtOnce; ++i) {
        const int row = first_row + from + i;
        if (row < p.rows) before[i] = columns.Before(p, row);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowsAtOnce; ++i) {
      const int row = first_row + from + i;
      const float4 v = *reinterpret_cast<const float4*>(memory + (from + i) * kPitch + lane * 16);
      if (row < p.rows) columns.Finish(p, row, v, before[i]);
    }
  }
}

template <ProductEnd kEnd>
__global__ void __launch_bounds__(kThreads, 2)
    PictureProductKernel(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
  extern __shared__ unsigned char raw[];
  __shared__ Barriers barriers;
  const uint32_t ring = (SharedAddress(raw) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      InitBarrier(SharedAddress(&barriers.full[s]), 1);
      InitBarrier(SharedAddress(&barriers.empty[s]), kConsumers / 32 * kCluster);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.x);
    PrefetchMap(&maps.w);
  }
  __syncthreads();
  MeetCluster();  // behind the fence of the barriers' initialisation
  WaitForPredecessors();
  LetDependentsLaunch();
  const int cluster = static_cast<int>(blockIdx.x) / kCluster;
  const int rank = static_cast<int>(blockIdx.x) % kCluster;
  const int shorter = p.shares_x ? p.row_tiles : p.column_tiles;
  const int along_longer = cluster / shorter * kCluster + rank;
  const int row_tile = p.shares_x ? cluster % shorter : along_longer;
  const int column_tile = p.shares_x ? along_longer : cluster % shorter;
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == kConsumers / 32) {
    if (threadIdx.x == kConsumers) Feed(p, maps, barriers, ring, rank, row_tile, column_tile);
    __syncwarp();
    MeetCluster();
    return;
  }
  float sums[64];
  Multiply(sums, p.steps, barriers, ring);
  NamedSync(1, kConsumers);  // no stage is in use any more
  Finish<kEnd>(p, sums, raw + (ring - SharedAddress(raw)) + warp * 16 * kPitch,
               row_tile * kTile + warp * 16, column_tile * kTile);
  __syncwarp();
  MeetCluster();  // nobody tells this block anything any more: it may end
}

using Kernel = void (*)(Params, Maps);

Kernel KernelOf(ProductEnd end) {
  switch (end) {
    case ProductEnd::kStore:
      return PictureProductKernel<ProductEnd::kStore>;
    case ProductEnd::kAdd:
      return PictureProductKernel<ProductEnd::kAdd>;
    case ProductEnd::kGeluTanh:
      return PictureProductKernel<ProductEnd::kGeluTanh>;
    case ProductEnd::kGeluErf:
      return PictureProductKernel<ProductEnd::kGeluErf>;
    case ProductEnd::kRotate:
      return PictureProductKernel<ProductEnd::kRotate>;
    case ProductEnd::kTurned:
      return PictureProductKernel<ProductEnd::kTurned>;
  }
  return nullptr;
}

}  // namespace

void PictureProduct(const OpContext& ctx, const PictureProductArgs& args) {
  const int64_t rows = args.x.dim(0), k = args.x.dim(1), n = args.w.dim(0);
  const bool wide = args.end == ProductEnd::kStore || args.end == ProductEnd::kAdd;
  BT_CHECK(args.x.dtype == DType::kBf16 && args.w.dtype == DType::kBf16 && args.w.dim(1) == k);
  BT_CHECK(args.out.dtype == (wide ? DType::kF32 : DType::kBf16));
  BT_CHECK(args.out.dim(0) == rows && args.out.dim(1) == n);
  BT_CHECK(args.bias.dim(0) == (args.end == ProductEnd::kTurned ? rows : n));
  const auto tiles = [](int64_t count) { return static_cast<int>((count + kTile - 1) / kTile); };
  const int64_t four_bytes = wide ? 16 : 8;
  const Params p = {.out = args.out.data,
                    .out_stride = args.out.stride[0],
                    .bias = args.bias.as<const float>(),
                    .rows = static_cast<int>(rows),
                    .n = static_cast<int>(n),
                    .steps = static_cast<int>((k + kStep - 1) / kStep),
                    .row_tiles = tiles(rows),
                    .column_tiles = tiles(n),
                    .shares_x = args.end == ProductEnd::kTurned,
                    .fours = args.out.stride[0] % 4 == 0 &&
                             reinterpret_cast<uintptr_t>(args.out.data) % four_bytes == 0,
                    .rotation = args.rotation};
  Maps maps = {};
  CheckOk(MakeRowsMap(args.x.data, rows, k, args.x.stride[0] * 2, p.shares_x ? kShareRows : kTile,
                      maps.x));
  CheckOk(MakeRowsMap(args.w.data, n, k, args.w.stride[0] * 2, p.shares_x ? kTile : kShareRows,
                      maps.w));
  const Kernel kernel = KernelOf(args.end);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "picture product");
  Regions reads(RegionOf(args.x), RegionOf(args.w));
  if (args.end == ProductEnd::kAdd) reads.Add(RegionOf(args.out));
  if (args.end == ProductEnd::kRotate) reads.Add(RegionOf(args.rotation.places, rows));
  const LaunchNote note = WaitsFirst("picture product", RegionOf(args.out), reads);
  const int shorter = p.shares_x ? p.row_tiles : p.column_tiles;
  const int longer = p.shares_x ? p.column_tiles : p.row_tiles;
  const int clusters = shorter * ((longer + kCluster - 1) / kCluster);
  CheckOk(LaunchOverlapped(note, kernel, dim3(static_cast<unsigned>(clusters * kCluster)),
                           dim3(kThreads), kSharedBytes, StreamOf(ctx), kCluster, p, maps));
}

}  // namespace baltoro::cuda
