#pragma once

// Instructions of attention's own kernels beside those of hopper.cuh. Device code only.

#include <cuda_bf16.h>

#include <cstdint>

namespace baltoro::cuda {

// 16 bytes of global memory to shared memory, or zeros. `from` is a valid address in both cases.
__device__ __forceinline__ void CopyAsync16(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(valid ? 16 : 0)
               : "memory");
}

__device__ __forceinline__ void WaitAllCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// 8x8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void LoadMatrices4(uint32_t (&m)[4], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(address)
               : "memory");
}

__device__ __forceinline__ void LoadMatrices2(uint32_t (&m)[2], uint32_t address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(m[0]), "=r"(m[1])
               : "r"(address)
               : "memory");
}

// d[16 x 8] += a[16 x 16] b[16 x 8].
__device__ __forceinline__ void MultiplyAdd(float (&d)[4],
                                            const uint32_t (&a)[4],
                                            const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#define BT_F8(d, i)                                                                   \
  "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define BT_F32(d, i) BT_F8(d, i), BT_F8(d, (i) + 8), BT_F8(d, (i) + 16), BT_F8(d, (i) + 24)
#define BT_SUMS64                                                                    \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// d[64 x 128] (+)= a[64 x 16] b[128 x 16]^T, both from shared memory, 16 elements adjacent
// (hopper.cuh's OperandDescriptor).
__device__ __forceinline__ void ProductN128(float (&d)[64],
                                            uint64_t a,
                                            uint64_t b,
                                            int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BT_SUMS64
      "}, %64, %65, p, 1, 1, 0, 0;\n"
      "}\n"
      : BT_F32(d, 0), BT_F32(d, 32)
      : "l"(a), "l"(b), "r"(accumulate));
}

// d[64 x 128] (+)= a[64 x 16] b[16 x 128]; a from registers in the layout of the sums, b's rows are
// the summed dimension.
__device__ __forceinline__ void ProductN128(float (&d)[64],
                                            const uint32_t (&a)[4],
                                            uint64_t b,
                                            int accumulate) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "setp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" BT_SUMS64
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n"
      "}\n"
      : BT_F32(d, 0), BT_F32(d, 32)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));
}

#undef BT_SUMS64
#undef BT_F32
#undef BT_F8

}  // namespace baltoro::cuda
