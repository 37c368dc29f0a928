#pragma once

// The warpgroup matrix instruction with both operands in shared memory: d (64 x kN) (+)= a (64 x 32
// bytes) * b (32 bytes x kN), rows of 128 bytes, 128-byte swizzle; bf16, e4m3 or s8. On e4m3 the
// hardware adds the products of one instruction with fewer bits than f32 has (about 13).

#include <cstdint>

namespace baltoro::cuda {

template <int kN>
struct GroupMultiplyShared;

#define BT_FOUR(c, d, i) c(d[i]), c(d[(i) + 1]), c(d[(i) + 2]), c(d[(i) + 3])
#define BT_SIXTEEN(c, d, i) \
  BT_FOUR(c, d, i), BT_FOUR(c, d, (i) + 4), BT_FOUR(c, d, (i) + 8), BT_FOUR(c, d, (i) + 12)
#define BT_EIGHT(c, d, i) BT_FOUR(c, d, i), BT_FOUR(c, d, (i) + 4)
#define BT_SUMS_16(c, d) BT_EIGHT(c, d, 0)
#define BT_SUMS_32(c, d) BT_SIXTEEN(c, d, 0)
#define BT_SUMS_48(c, d) BT_SUMS_32(c, d), BT_EIGHT(c, d, 16)
#define BT_SUMS_64(c, d) BT_SUMS_32(c, d), BT_SIXTEEN(c, d, 16)
#define BT_SUMS_72(c, d) BT_SUMS_64(c, d), BT_FOUR(c, d, 32)
#define BT_SUMS_80(c, d) BT_SUMS_64(c, d), BT_EIGHT(c, d, 32)
#define BT_SUMS_96(c, d) BT_SUMS_64(c, d), BT_SIXTEEN(c, d, 32)
#define BT_SUMS_112(c, d) BT_SUMS_96(c, d), BT_EIGHT(c, d, 48)
#define BT_SUMS_128(c, d) BT_SUMS_96(c, d), BT_SIXTEEN(c, d, 48)
#define BT_SUMS_192(c, d) BT_SUMS_128(c, d), BT_SIXTEEN(c, d, 64), BT_SIXTEEN(c, d, 80)
#define BT_NAMES_16 "%0, %1, %2, %3, %4, %5, %6, %7"
#define BT_NAMES_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define BT_NAMES_48 BT_NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define BT_NAMES_64 \
  BT_NAMES_32       \
  ", "              \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define BT_NAMES_72 BT_NAMES_64 ", %32, %33, %34, %35"
#define BT_NAMES_80 BT_NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define BT_NAMES_96 \
  BT_NAMES_64       \
  ", "              \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define BT_NAMES_112 BT_NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define BT_NAMES_128 \
  BT_NAMES_96        \
  ", "               \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define BT_NAMES_192                                                                 \
  BT_NAMES_128                                                                       \
  ", "                                                                               \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"

// `at`: numbers of the operands behind the sums: a, b, accumulate.
#define BT_ADD(name, sum, constraint, n, type, tail, a_at, b_at, p_at)                           \
  static __device__ __forceinline__ void name(sum(&d)[n / 2], uint64_t a, uint64_t b, int add) { \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" p_at                                       \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #n type " {" BT_NAMES_##n             \
                 "}, %" a_at ", %" b_at ", p" tail ";\n}\n"                                      \
                 : BT_SUMS_##n(constraint, d)                                                    \
                 : "l"(a), "l"(b), "r"(add));                                                    \
  }
#define BT_GROUP_MULTIPLY(n, a_at, b_at, p_at)                                          \
  template <>                                                                           \
  struct GroupMultiplyShared<n> {                                                       \
    BT_ADD(Bf16, float, "+f", n, "k16.f32.bf16.bf16", ", 1, 1, 0, 0", a_at, b_at, p_at) \
    BT_ADD(E4m3, float, "+f", n, "k32.f32.e4m3.e4m3", ", 1, 1", a_at, b_at, p_at)       \
    BT_ADD(Int8, int, "+r", n, "k32.s32.s8.s8", "", a_at, b_at, p_at)                   \
  };

BT_GROUP_MULTIPLY(16, "8", "9", "10")
BT_GROUP_MULTIPLY(32, "16", "17", "18")
BT_GROUP_MULTIPLY(48, "24", "25", "26")
BT_GROUP_MULTIPLY(64, "32", "33", "34")
BT_GROUP_MULTIPLY(80, "40", "41", "42")
BT_GROUP_MULTIPLY(96, "48", "49", "50")
BT_GROUP_MULTIPLY(112, "56", "57", "58")
BT_GROUP_MULTIPLY(128, "64", "65", "66")

template <>
struct GroupMultiplyShared<72> {
  BT_ADD(E4m3, float, "+f", 72, "k32.f32.e4m3.e4m3", ", 1, 1", "36", "37", "38")
};
template <>
struct GroupMultiplyShared<192> {
  BT_ADD(E4m3, float, "+f", 192, "k32.f32.e4m3.e4m3", ", 1, 1", "96", "97", "98")
};

#undef BT_GROUP_MULTIPLY
#undef BT_ADD
#undef BT_NAMES_192
#undef BT_NAMES_128
#undef BT_NAMES_112
#undef BT_NAMES_96
#undef BT_NAMES_72
#undef BT_NAMES_80
#undef BT_NAMES_64
#undef BT_NAMES_48
#undef BT_NAMES_32
#undef BT_NAMES_16
#undef BT_SUMS_192
#undef BT_SUMS_128
#undef BT_SUMS_112
#undef BT_SUMS_96
#undef BT_SUMS_72
#undef BT_SUMS_80
#undef BT_SUMS_64
#undef BT_SUMS_48
#undef BT_SUMS_32
#undef BT_SUMS_16
#undef BT_EIGHT
#undef BT_SIXTEEN
#undef BT_FOUR

}  // namespace baltoro::cuda
