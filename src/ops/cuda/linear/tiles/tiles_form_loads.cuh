#pragma once

// How the forms of the product kernel (tiles_kernel.cuh) load. A form, tiles_form_*.cuh, is what
// the kernel knows of one kind of weights: how 16 rows by one step of columns are loaded and
// multiplied. The columns that a lane holds are the same for weights and activations, in whatever
// order.

#include <cstdint>

#include "ops/cuda/linear/tiles/tiles_params.h"

namespace baltoro::cuda::product {

__device__ __forceinline__ uint4 LoadWeights(const char* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// Eight columns of a row of bf16, zeros beyond the last; k is a multiple of 8.
__device__ __forceinline__ uint4 LoadColumns(const char* row, int column, int k) {
  if (column >= k) return make_uint4(0, 0, 0, 0);
  return *reinterpret_cast<const uint4*>(row + column * 2);
}

// 16 bytes to shared memory, zeros unless `inside`.
__device__ __forceinline__ void CopyOrZero(uint32_t to_shared, const char* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from),
               "r"(inside ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void WaitCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Rows g and g + 8 of a strip, row-major; the last row again beyond the last.
struct RowPair {
  const char *low, *high;
  __device__ __forceinline__
  RowPair(const Params& p, const char* weights, int strip, int lane, int64_t row_bytes) {
    const int row = strip * 16 + lane / 4;
    low = weights + min(row, p.n - 1) * row_bytes + lane % 4 * 16;
    high = weights + min(row + 8, p.n - 1) * row_bytes + lane % 4 * 16;
  }
};

}  // namespace baltoro::cuda::product
