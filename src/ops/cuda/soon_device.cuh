#pragma once

#include "ops/cuda/soon.h"

namespace baltoro::cuda {

// By one thread of each block: block `block` of `blocks` asks for its share of each range.
__device__ inline void FetchSoon(const SoonRead& soon, int block, int blocks) {
  constexpr int64_t kLine = 128, kPiece = 16384;
#pragma unroll
  for (int i = 0; i < kSoonMax; ++i) {
    const int64_t bytes = soon.bytes[i];
    if (bytes == 0) continue;
    int64_t at = bytes * block / blocks / kLine * kLine;
    const int64_t end = block + 1 == blocks ? bytes : bytes * (block + 1) / blocks / kLine * kLine;
    for (; at < end; at += kPiece) {
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(soon.data[i] + at),
                   "r"(static_cast<uint32_t>(min(kPiece, end - at)))
                   : "memory");
    }
  }
}

}  // namespace baltoro::cuda
