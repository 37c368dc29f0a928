#pragma once

// What kernels over rows share: eight elements at a time as floats, sums over a block, and launches
// that begin while the kernel before them ends. Every such kernel calls WaitForPredecessors()
// (hopper.cuh) in all blocks before it touches what another kernel wrote or reads.

#include <cuda_bf16.h>

#include <cstdint>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/launch_stream.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/row_sizes.h"
#include "tensor/tensor_view.h"

namespace baltoro::cuda {

__host__ __device__ inline int Eights(int64_t width) {
  return static_cast<int>((width + kEight - 1) / kEight);
}

// Whether rows may be read and written 16 bytes at a time.
inline bool InVectors(const TensorView& x) {
  const int64_t row_bytes = x.stride[0] * SizeOf(x.dtype);
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && (x.dim(0) <= 1 || row_bytes % 16 == 0);
}

__device__ inline float AsFloat(float x) {
  return x;
}
__device__ inline float AsFloat(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline void Round(float x, float* to) {
  *to = x;
}
__device__ inline void Round(float x, __nv_bfloat16* to) {
  *to = __float2bfloat16_rn(x);
}

__device__ inline void LoadWhole(const float* from, float (&x)[kEight]) {
  const float4 low = reinterpret_cast<const float4*>(from)[0];
  const float4 high = reinterpret_cast<const float4*>(from)[1];
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}
__device__ inline void LoadWhole(const __nv_bfloat16* from, float (&x)[kEight]) {
  const uint4 packed = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {packed.x, packed.y, packed.z, packed.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
__device__ inline void StoreWhole(float* to, const float (&x)[kEight]) {
  reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
  reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ inline void StoreWhole(__nv_bfloat16* to, const float (&x)[kEight]) {
  *reinterpret_cast<uint4*>(to) =
      make_uint4(hopper::PackBf16(x[0], x[1]), hopper::PackBf16(x[2], x[3]),
                 hopper::PackBf16(x[4], x[5]), hopper::PackBf16(x[6], x[7]));
}

// `count` of eight elements, the others 0. `vectors`: `from` is aligned to 16 bytes.
template <typename T>
__device__ inline void LoadEight(const T* from, int count, bool vectors, float (&x)[kEight]) {
  if (vectors && count >= kEight) {
    LoadWhole(from, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] = i < count ? AsFloat(from[i]) : 0.0f;
}

template <typename T>
__device__ inline void StoreEight(T* to, int count, bool vectors, const float (&x)[kEight]) {
  if (vectors && count >= kEight) {
    StoreWhole(to, x);
    return;
  }
#pragma unroll
  for (int i = 0; i < kEight; ++i) {
    if (i < count) Round(x[i], to + i);
  }
}

// silu(gate) * up, as activations are made.
__device__ inline float GatedUp(float gate, float up) {
  return gate / (1.0f + expf(-gate)) * up;
}

// The sum over a warp, the same bits in each lane.
__device__ inline float WarpSum(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// The sum of what up to 32 warps left in `partial`, the same bits in each lane.
__device__ inline float SumOfWarps(const float* partial, int warps) {
  const int lane = threadIdx.x % 32;
  return WarpSum(lane < warps ? partial[lane] : 0.0f);
}

// The sum over all threads of a block of whole warps, the same bits in each. Once in a kernel for
// each `partial` [32] in shared memory.
__device__ inline float BlockSum(float value, float* partial) {
  value = WarpSum(value);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = value;
  __syncthreads();
  return SumOfWarps(partial, static_cast<int>(blockDim.x) / 32);
}

// Queues `kernel` so that it may start while the kernel before it in the stream ends.
template <typename... Params, typename... Given>
void LaunchAhead(const LaunchNote& note,
                 const LaunchStream& stream,
                 void (*kernel)(Params...),
                 dim3 grid,
                 int threads,
                 Given&&... given) {
  CheckCuda(LaunchPlaced(note, kernel, grid, dim3(static_cast<unsigned>(threads)), 0, stream, 0,
                         given...),
            note.kernel);
}

}  // namespace baltoro::cuda
