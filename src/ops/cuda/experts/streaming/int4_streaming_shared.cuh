#pragma once

// What the kernels of the streaming form share (int4_streaming.cu, int4_digits.cu,
// int4_digits_down.cu): each block's equal share of the tiles' strips, the ring in shared memory
// that one of its warps feeds, the launch.

#include <algorithm>

#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// Where block `block`'s share begins, in units of which a tile has `units`.
__device__ __forceinline__ int MoeFirstUnit(const MoeStart* starts, int block, int units) {
  const int2 start = __ldcg(reinterpret_cast<const int2*>(starts) + block);
  return start.x * units + static_cast<int>(static_cast<int64_t>(start.y) * units >> 16);
}

// Units first .. last - 1 of one tile; a block's share is a few such runs.
struct UnitRun {
  MoeTile tile;
  int first, last;
};

// Where a ring of kStages stands.
template <int kStages>
struct RingPosition {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The barriers of a ring that one warp fills and `readers` warps empty, by the whole block.
template <int kStages>
__device__ __forceinline__ void InitRing(uint32_t full, uint32_t empty, int readers) {
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(empty + 8 * s, readers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
}

// Two blocks a multiprocessor; what shared memory they leave is L1, which holds the activations.
template <typename Params>
Status LaunchMoeStreaming(const LaunchNote& note,
                          void (*kernel)(Params),
                          int32_t blocks,
                          int threads,
                          int shared_bytes,
                          const LaunchStream& stream,
                          const Params& params) {
  cudaError_t error = AllowShared(kernel, shared_bytes);
  if (error == cudaSuccess) {
    const int percent =
        std::min(100, kStreamingBlocks * (shared_bytes + 1024) * 100 / (228 * 1024) + 1);
    error = cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent);
  }
  if (error != cudaSuccess) {
    return Status(Code::kInternal, std::string(note.kernel) + ": " + cudaGetErrorString(error));
  }
  return LaunchOverlapped(note, kernel, dim3(blocks), dim3(threads), shared_bytes, stream, 1,
                          params);
}

}  // namespace baltoro::cuda
