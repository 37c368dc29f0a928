// A block has 128 rows of x and 128 of w: a warp fetches 64 columns of both at a time into a ring
// of three stages, two warpgroups multiply, 64 rows of x each. Two blocks stand on a
// multiprocessor, so that the end of one is behind the products of the other. Blocks that follow
// each other share the rows of the longer side: those are read from memory once, the shorter side
// stays in the L2.

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

struct Params {
  void* out;
  int64_t out_stride;
  const float* bias;
  int rows, n, steps;
  int row_tiles, column_tiles;
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

// Two neighbouring sums of row `row`, columns `column` and behind it, of which the second may be
// beyond the last.
template <ProductEnd kEnd>
__device__ __forceinline__ void Finish(
    const Params& p, int row, uint32_t place, int column, float a, float b) {
  const bool both = column + 1 < p.n;
  if constexpr (kEnd == ProductEnd::kTurned) {
    const float bias = __ldg(p.bias + row);
    a += bias;
    b += bias;
  } else if (both) {
    const float2 bias = __ldg(reinterpret_cast<const float2*>(p.bias + column));
    a += bias.x;
    b += bias.y;
  } else {
    a += __ldg(p.bias + column);
  }
  if constexpr (kEnd == ProductEnd::kRotate) {
    const int pair = column % p.rotation.head / 2;
    const uint32_t turns = pair % 2 == 0 ? place & 0xFFFF : place >> 16;
    const int at = static_cast<int>(turns) * (p.rotation.head / 4) + pair / 2;
    const float cos = __ldg(p.rotation.cos + at), sin = __ldg(p.rotation.sin + at);
    const float turned = a * cos - b * sin;
    b = a * sin + b * cos;
    a = turned;
  }
  if constexpr (kEnd == ProductEnd::kGeluTanh) a = GeluTanh(a), b = GeluTanh(b);
  if constexpr (kEnd == ProductEnd::kGeluErf) a = GeluErf(a), b = GeluErf(b);

  const int64_t to = row * p.out_stride + column;
  if constexpr (kEnd == ProductEnd::kStore || kEnd == ProductEnd::kAdd) {
    constexpr bool kAdds = kEnd == ProductEnd::kAdd;
    float* const out = static_cast<float*>(p.out) + to;
    if (p.out_stride % 2 == 0 && both) {
      float2 sums = make_float2(a, b);
      if constexpr (kAdds) {
        const float2 before = *reinterpret_cast<const float2*>(out);
        sums = make_float2(before.x + a, before.y + b);
      }
      *reinterpret_cast<float2*>(out) = sums;
    } else {
      out[0] = kAdds ? out[0] + a : a;
      if (both) out[1] = kAdds ? out[1] + b : b;
    }
  } else {
    *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + to) = PackBf16(a, b);
  }
}

__device__ __forceinline__ void Multiply(float (&sums)[64],
                                         int steps,
                                         Barriers& barriers,
                                         uint32_t ring) {
  const int group = static_cast<int>(threadIdx.x) / 128;
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
      if (threadIdx.x % 32 == 0) Arrive(SharedAddress(&barriers.empty[last]));
      if (++last == kStages) last = 0;
    }
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  WaitProducts<0>();
  Pin(sums);
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
      InitBarrier(SharedAddress(&barriers.empty[s]), kConsumers / 32);
    }
    FenceBarrierInit();
    PrefetchMap(&maps.x);
    PrefetchMap(&maps.w);
  }
  __syncthreads();
  WaitForPredecessors();
  LetDependentsLaunch();
  const int block = static_cast<int>(blockIdx.x);
  const bool x_is_short = kEnd == ProductEnd::kTurned;
  const int inner = x_is_short ? p.row_tiles : p.column_tiles;
  const int row_tile = x_is_short ? block % inner : block / inner;
  const int column_tile = x_is_short ? block / inner : block % inner;
  const int warp = __shfl_sync(0xFFFFFFFF, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == kConsumers / 32) {
    if (threadIdx.x != kConsumers) return;
    int stage = 0;
    uint32_t parity = 1;
#pragma unroll 1
    for (int s = 0; s < p.steps; ++s) {
      hopper::Wait(SharedAddress(&barriers.empty[stage]), parity);
      const uint32_t full = SharedAddress(&barriers.full[stage]);
      const uint32_t to = ring + stage * kStageBytes;
      ArriveExpecting(full, kStageBytes);
      CopyBox(to, &maps.x, full, s * kStep, row_tile * kTile, 0);
      CopyBox(to + kOperandBytes, &maps.w, full, s * kStep, column_tile * kTile, 0);
      if (++stage == kStages) stage = 0, parity ^= 1;
    }
    return;
  }
  float sums[64];
  Multiply(sums, p.steps, barriers, ring);
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = row_tile * kTile + warp * 16 + lane / 4 + 8 * r;
    if (row >= p.rows) continue;
    const uint32_t place = kEnd == ProductEnd::kRotate ? p.rotation.places[row] : 0;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int column = column_tile * kTile + 8 * i + 2 * (lane % 4);
      if (column < p.n) {
        Finish<kEnd>(p, row, place, column, sums[4 * i + 2 * r], sums[4 * i + 2 * r + 1]);
      }
    }
  }
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
  BT_CHECK(wide || args.out.stride[0] % 2 == 0);
  BT_CHECK(args.bias.dim(0) == (args.end == ProductEnd::kTurned ? rows : n));
  Params p = {.out = args.out.data,
              .out_stride = args.out.stride[0],
              .bias = args.bias.as<const float>(),
              .rows = static_cast<int>(rows),
              .n = static_cast<int>(n),
              .steps = static_cast<int>((k + kStep - 1) / kStep),
              .row_tiles = static_cast<int>((rows + kTile - 1) / kTile),
              .column_tiles = static_cast<int>((n + kTile - 1) / kTile),
              .rotation = args.rotation};
  Maps maps = {};
  CheckOk(MakeRowsMap(args.x.data, rows, k, args.x.stride[0] * 2, kTile, maps.x));
  CheckOk(MakeRowsMap(args.w.data, n, k, args.w.stride[0] * 2, kTile, maps.w));
  const Kernel kernel = KernelOf(args.end);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "picture product");
  Regions reads(RegionOf(args.x), RegionOf(args.w));
  if (args.end == ProductEnd::kAdd) reads.Add(RegionOf(args.out));
  if (args.end == ProductEnd::kRotate) reads.Add(RegionOf(args.rotation.places, rows));
  // A bf16 row of an odd width has one element more.
  TensorView written = args.out;
  written.shape[1] = wide ? n : n + n % 2;
  const LaunchNote note = WaitsFirst("picture product", RegionOf(written), reads);
  CheckOk(LaunchOverlapped(note, kernel, dim3(static_cast<unsigned>(p.row_tiles * p.column_tiles)),
                           dim3(kThreads), kSharedBytes, StreamOf(ctx), 0, p, maps));
}

}  // namespace baltoro::cuda
