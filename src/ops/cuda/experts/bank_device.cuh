#pragma once

// What the expert bank's kernels share: barriers in shared memory, bulk copies, widening of INT4
// values, the matrix instruction, and the launch that overlaps with the kernel before it.

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"
#include "ops/cuda/launch/placed_launch.h"

namespace baltoro::cuda {

__device__ inline uint32_t SharedAddress(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ inline void BarrierInit(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}

__device__ inline void BarrierExpectBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}

__device__ inline void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

__device__ inline void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

// A weight is read once a step, so its lines leave the L2 first.
__device__ inline uint64_t ReadOncePolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ inline void CopyBulk(
    uint32_t to_shared, const void* from, uint32_t bytes, uint32_t barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// The same without the hint, for what others read too.
__device__ __forceinline__ void CopyPlain(uint32_t to_shared,
                                          const void* from,
                                          uint32_t bytes,
                                          uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to_shared),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// 16 bytes past the L1, of the thread's own asynchronous copies.
__device__ __forceinline__ void Copy16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}

// Returns once the kernels before this one in the stream have ended.
__device__ inline void WaitForEarlierKernels() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
// Lets the next kernel start where there is room; it waits as above before it uses results.
__device__ inline void AllowNextKernel() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

__device__ inline uint4 LoadShared4(uint32_t address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(address));
  return v;
}

__device__ inline uint2 LoadShared2(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address));
  return v;
}

__device__ inline uint4 LoadGlobal4(const void* from) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

// What the values of one row and group of 32 columns are widened with.
struct WidenScale {
  __nv_bfloat162 factor, offset;
};

// From the low or the high half of a scale word.
__device__ __forceinline__ WidenScale LoadScale(uint32_t word, bool high) {
  const __nv_bfloat162 pair = *reinterpret_cast<const __nv_bfloat162*>(&word);
  const __nv_bfloat162 both = high ? __high2bfloat162(pair) : __low2bfloat162(pair);
  // -2^-127, a subnormal number of bf16.
  const uint32_t minus = 0x80408040u;
  return {both, __hmul2(both, *reinterpret_cast<const __nv_bfloat162*>(&minus))};
}

// Pair p of a packed word as bf16 W * 2^-8; see int4_layout.h.
__device__ __forceinline__ uint32_t WidenPair(uint32_t word, int p, const WidenScale& scale) {
  const uint32_t raw = __funnelshift_r(word, word, 4 * p) & 0x00780078u;
  const __nv_bfloat162 wide =
      __hfma2(*reinterpret_cast<const __nv_bfloat162*>(&raw), scale.factor, scale.offset);
  return *reinterpret_cast<const uint32_t*>(&wide);
}

// What undoes the 2^-8.
inline constexpr float kWidenUndo = 256.0f;

// c += a (16 x 16, row) * b (16 x 8, column), bf16 operands.
__device__ inline void MultiplyAdd(
    float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline float SiluTimes(float gate, float up) {
  return gate / (1.0f + __expf(-gate)) * up;
}

// The same within a few f32 roundings, with fewer instructions.
__device__ __forceinline__ float FastSiluTimes(float gate, float up) {
  return __fdividef(gate, 1.0f + __expf(-gate)) * up;
}

// Two results of rows g and half + g of a strip, g = lane / 4, as two neighbouring ones: of lanes
// with even g rows g and g + 1, of those with odd g rows half + g - 1 and half + g. By all lanes.
__device__ inline uint32_t Neighbours(float low, float high, int lane) {
  const bool odd = lane / 4 % 2 != 0;
  const float other = __shfl_xor_sync(~0u, odd ? low : high, 4);
  const __nv_bfloat162 pair =
      odd ? __floats2bfloat162_rn(other, high) : __floats2bfloat162_rn(low, other);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// The first of their columns in strip `strip` of a matrix of `rows` rows.
__device__ inline int NeighboursRow(int strip, int rows, int lane) {
  const int g = lane / 4;
  return strip * 8 + (g % 2 != 0 ? rows / 2 + g - 1 : g);
}

// Launches `kernel`, in clusters of `cluster` blocks, so that it may start while the kernel before
// it in the stream ends.
template <typename... Params, typename... Given>
Status LaunchOverlapped(const char* what,
                        void (*kernel)(Params...),
                        dim3 grid,
                        dim3 block,
                        size_t shared_bytes,
                        cudaStream_t stream,
                        unsigned cluster,
                        Given&&... given) {
  const cudaError_t error =
      LaunchPlaced(kernel, grid, block, shared_bytes, stream, cluster, given...);
  if (error == cudaSuccess) return Status();
  return Status(Code::kInternal, std::string(what) + ": " + cudaGetErrorString(error));
}

}  // namespace baltoro::cuda
