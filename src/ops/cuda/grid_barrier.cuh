#pragma once

// One meeting of all blocks of a kernel whose blocks are on the card at the same time.

#include <cuda_runtime_api.h>

#include <cstdint>

namespace baltoro::cuda {

// A counter in device memory for kernels of this stream that are `blocks` blocks each time, a power
// of two; kept for good. Null where such kernels of all streams could not be on the device at once,
// a block a multiprocessor: they would wait for each other for ever.
uint32_t* GridCounter(cudaStream_t stream, int blocks);

// What this block's threads wrote is visible to those that MeetGrid with the returned ticket, by
// one thread, after a __syncthreads.
__device__ __forceinline__ uint32_t ArriveAtGrid(uint32_t* counter) {
  uint32_t ticket;
  asm volatile("fence.acq_rel.gpu;\natom.add.relaxed.gpu.global.u32 %0, [%1], 1;"
               : "=r"(ticket)
               : "l"(counter)
               : "memory");
  return ticket;
}

// Returns when all blocks have arrived, to one thread; a __syncthreads follows. Counters go round:
// a launch counts from a multiple of its blocks on.
__device__ __forceinline__ void MeetGrid(const uint32_t* counter,
                                         uint32_t ticket,
                                         uint32_t blocks) {
  const uint32_t all = (ticket / blocks + 1) * blocks;
  uint32_t arrived;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(arrived) : "l"(counter) : "memory");
  } while (static_cast<int32_t>(arrived - all) < 0);
}

}  // namespace baltoro::cuda
