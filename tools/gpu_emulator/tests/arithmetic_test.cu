// Whole numbers and floats, one instruction a case. Words a, b, c go in for each thread; the
// arithmetic beside each instruction is the host's.

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>

#include "instruction_test.h"

namespace baltoro::instructions {
namespace {

constexpr int kThreads = 256, kBlocks = 8;
constexpr size_t kCount = size_t{kThreads} * kBlocks;

using S = int32_t;
using U = uint32_t;
using S64 = int64_t;
using U64 = uint64_t;

U Prmt(U a, U b, U c) {
  const U64 bytes = U64{b} << 32 | a;
  U result = 0;
  for (int n = 0; n < 4; ++n) {
    const U selector = c >> (4 * n) & 15;
    U byte = static_cast<U>(bytes >> (8 * (selector & 7))) & 255;
    if ((selector & 8) != 0) byte = (byte & 128) != 0 ? 255 : 0;
    result |= byte << (8 * n);
  }
  return result;
}
U Majority(U a, U b, U c) {
  return (a & b) | (a & c) | (b & c);
}
U Reversed(U a) {
  U result = 0;
  for (int n = 0; n < 32; ++n) result |= (a >> n & 1) << (31 - n);
  return result;
}
// The lowest byte of a at bit 5 of b.
U Inserted(U a, U b) {
  return (b & ~(255u << 5)) | (a & 255) << 5;
}
U Shifted(U a, U by) {
  return by > 31 ? 0 : a >> by;
}

// Instructions of three, two and one operands, and those whose operands are written out.
#define BT_WHOLE(T, B, O, X)                                                                       \
  T("prmt.b32", Prmt(a, b, c))                                                                     \
  T("shf.r.wrap.b32", static_cast<U>((U64{b} << 32 | a) >> (c & 31)))                              \
  T("mad.lo.s32", a* b + c)                                                                        \
  X("lop3.b32 %0, %1, %2, %3, 0xE8;", Majority(a, b, c))                                           \
  X("bfi.b32 %0, %1, %2, 5, 8;", Inserted(a, b))                                                   \
  B("add.s32", a + b)                                                                              \
  B("sub.s32", a - b)                                                                              \
  B("mul.lo.s32", a* b)                                                                            \
  B("mul.hi.s32", static_cast<U>((S64{S(a)} * S(b)) >> 32))                                        \
  B("and.b32", a& b)                                                                               \
  B("or.b32", a | b)                                                                               \
  B("xor.b32", a ^ b)                                                                              \
  B("min.s32", static_cast<U>(std::min(S(a), S(b))))                                               \
  B("max.s32", static_cast<U>(std::max(S(a), S(b))))                                               \
  B("min.u32", std::min(a, b))                                                                     \
  B("max.u32", std::max(a, b))                                                                     \
  B("shl.b32", b > 31 ? 0 : a << b)                                                                \
  B("shr.u32", Shifted(a, b))                                                                      \
  B("shr.s32", static_cast<U>(S(a) >> std::min(b, 31u)))                                           \
  X("{ .reg .u32 t; or.b32 t, %2, 1; div.u32 %0, %1, t; }", a / (b | 1))                           \
  X("{ .reg .u32 t; or.b32 t, %2, 1; rem.u32 %0, %1, t; }", a % (b | 1))                           \
  X("{ .reg .s32 t; shr.s32 t, %2, 1; or.b32 t, t, 2; div.s32 %0, %1, t; }",                       \
    static_cast<U>(S64{S(a)} / ((S(b) >> 1) | 2)))                                                 \
  X("{ .reg .s32 t; shr.s32 t, %2, 1; or.b32 t, t, 2; rem.s32 %0, %1, t; }",                       \
    static_cast<U>(S64{S(a)} % ((S(b) >> 1) | 2)))                                                 \
  O("not.b32", ~a)                                                                                 \
  O("neg.s32", 0u - a)                                                                             \
  O("abs.s32", S(a) < 0 ? 0u - a : a)                                                              \
  O("brev.b32", Reversed(a))                                                                       \
  O("popc.b32", static_cast<U>(std::popcount(a)))                                                  \
  O("clz.b32", static_cast<U>(std::countl_zero(a)))                                                \
  O("bfind.shiftamt.u32", a == 0 ? ~0u : static_cast<U>(std::countl_zero(a)))                      \
  X("{ .reg .u64 t; .reg .u32 l; mul.wide.u32 t, %1, %2; mov.b64 {l, %0}, t; }",                   \
    static_cast<U>((U64{a} * b) >> 32))                                                            \
  X("{ .reg .s64 t; .reg .u32 l; mul.wide.s32 t, %1, %2; mov.b64 {l, %0}, t; }",                   \
    static_cast<U>((S64{S(a)} * S(b)) >> 32))                                                      \
  X("{ .reg .u64 t, u; .reg .u32 h; mov.b64 t, {%1, %2}; shr.u64 u, t, %3; mov.b64 {%0, h}, u; }", \
    static_cast<U>(c > 63 ? 0 : (U64{b} << 32 | a) >> c))                                          \
  X("{ .reg .s64 t, u; .reg .u32 h; mov.b64 t, {%1, %2}; shr.s64 u, t, %3; mov.b64 {%0, h}, u; }", \
    static_cast<U>(static_cast<S64>(U64{b} << 32 | a) >> std::min(c, 63u)))                        \
  X("{ .reg .b64 t, u; .reg .u32 l; mov.b64 t, {%1, %2}; shl.b64 u, t, %3; mov.b64 {l, %0}, u; }", \
    static_cast<U>((c > 63 ? 0 : (U64{b} << 32 | a) << c) >> 32))                                  \
  X("{ .reg .u64 t, u, v; .reg .u32 l; mov.b64 t, {%1, %2}; mov.b64 u, {%2, %3};"                  \
    " mul.hi.u64 v, t, u; mov.b64 {l, %0}, v; }",                                                  \
    static_cast<U>(static_cast<unsigned __int128>(U64{b} << 32 | a) * (U64{c} << 32 | b) >> 96))   \
  X("{ .reg .u64 t, u, v; .reg .u32 l; mov.b64 t, {%1, %2}; mov.b64 u, {%2, %3};"                  \
    " min.u64 v, t, u; mov.b64 {l, %0}, v; }",                                                     \
    static_cast<U>(std::min(U64{b} << 32 | a, U64{c} << 32 | b) >> 32))                            \
  X("{ .reg .pred p, q; setp.lt.s32 p, %1, %2; setp.ge.u32 q, %1, %3; xor.pred p, p, q;"           \
    " selp.b32 %0, %2, %3, p; }",                                                                  \
    (S(a) < S(b)) != (a >= c) ? b : c)

__global__ void WholeKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const uint32_t a = in[thread * 3], b = in[thread * 3 + 1], c = in[thread * 3 + 2];
  uint32_t at = thread, d;
#define BT_X(text, expression)                           \
  asm volatile(text : "=r"(d) : "r"(a), "r"(b), "r"(c)); \
  out[at] = d;                                           \
  at += gridDim.x * blockDim.x;
#define BT_T(text, expression) BT_X(text " %0, %1, %2, %3;", )
#define BT_B(text, expression) BT_X(text " %0, %1, %2;", )
#define BT_O(text, expression) BT_X(text " %0, %1;", )
  BT_WHOLE(BT_T, BT_B, BT_O, BT_X)
#undef BT_X
}

GPU_TEST(ArithmeticTest, WholeNumbers) {
  const Words in = SomeWords(kCount * 3, 1);
  std::vector<const char*> names;
  Words want;
#define BT_HOST(text, expression)                                                 \
  names.push_back(text);                                                          \
  for (size_t n = 0; n < kCount; ++n) {                                           \
    [[maybe_unused]] const U a = in[3 * n], b = in[3 * n + 1], c = in[3 * n + 2]; \
    want.push_back(expression);                                                   \
  }
  BT_WHOLE(BT_HOST, BT_HOST, BT_HOST, BT_HOST)
  const Words got = Run(WholeKernel, dim3(kBlocks), dim3(kThreads), in, want.size());
  ExpectWords("whole numbers", got, want, SameWord, [&](size_t n) {
    return std::string("of ") + names[n / kCount] + " of " + std::to_string(in[n % kCount * 3]) +
           ", " + std::to_string(in[n % kCount * 3 + 1]) + ", " +
           std::to_string(in[n % kCount * 3 + 2]);
  });
}

// ---- floats: operations that are rounded to the nearest are exact to the bit

float RoundedDown(float a, float b, float c) {
  // The sum of the product and c with what the rounding to double leaves over.
  const double product = double{a} * b, sum = product + c;
  const double rest = std::abs(product) > std::abs(c) ? c - (sum - product) : product - (sum - c);
  auto result = static_cast<float>(sum);
  const bool above = result > sum || (result == sum && rest < 0);
  return above ? std::nextafter(result, -std::numeric_limits<float>::infinity()) : result;
}
// NaN gives way to a number; -0 is below 0.
float Smaller(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a < b || (a == b && std::signbit(a)) ? a : b;
}
float Larger(float a, float b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) ? b : a;
  return a > b || (a == b && std::signbit(b)) ? a : b;
}
U ToWhole(float a, float (*rounded)(float)) {
  if (std::isnan(a)) return 0;
  const double r = rounded(a);
  return static_cast<U>(static_cast<S>(std::clamp(r, -2147483648.0, 2147483647.0)));
}
// (Of which sign the result of -0 is, is not written anywhere: it is made 0 before.)
U Saturated(float a) {
  return std::isnan(a) || a <= 0 ? 0 : Bits(std::min(a, 1.0f));
}

#define BT_FLOATS(T, B, O, X)                                                                      \
  T("fma.rn.f32", Bits(std::fma(a, b, c)))                                                         \
  B("add.f32", Bits(a + b))                                                                        \
  B("sub.f32", Bits(a - b))                                                                        \
  B("mul.f32", Bits(a* b))                                                                         \
  B("div.rn.f32", Bits(a / b))                                                                     \
  B("min.f32", Bits(Smaller(a, b)))                                                                \
  B("max.f32", Bits(Larger(a, b)))                                                                 \
  O("sqrt.rn.f32", Bits(std::sqrt(a)))                                                             \
  O("rcp.rn.f32", Bits(1.0f / a))                                                                  \
  O("neg.f32", Bits(-a))                                                                           \
  O("abs.f32", Bits(std::fabs(a)))                                                                 \
  O("cvt.rni.f32.f32", Bits(std::nearbyint(a)))                                                    \
  X("{ .reg .f32 t; add.f32 t, %1, 0f00000000; cvt.sat.f32.f32 %0, t; }", Saturated(a))            \
  X("{ .reg .s32 t; cvt.rni.s32.f32 t, %1; mov.b32 %0, t; }", ToWhole(a, std::nearbyint))          \
  X("{ .reg .s32 t; cvt.rzi.s32.f32 t, %1; mov.b32 %0, t; }", ToWhole(a, std::trunc))              \
  X("{ .reg .s32 t; mov.b32 t, %1; cvt.rn.f32.s32 %0, t; }", Bits(static_cast<float>(S(Bits(a))))) \
  X("{ .reg .u32 t; mov.b32 t, %1; cvt.rn.f32.u32 %0, t; }", Bits(static_cast<float>(Bits(a))))    \
  X("{ .reg .pred p; setp.lt.f32 p, %1, %2; selp.f32 %0, %1, %3, p; }", Bits(a < b ? a : c))       \
  X("{ .reg .pred p; setp.leu.f32 p, %1, %2; selp.f32 %0, %1, %3, p; }", Bits(!(a > b) ? a : c))

__global__ void FloatKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const float a = __uint_as_float(in[thread * 3]), b = __uint_as_float(in[thread * 3 + 1]),
              c = __uint_as_float(in[thread * 3 + 2]);
  float d;
  uint32_t at = thread;
#define BT_X(text, expression)                           \
  asm volatile(text : "=f"(d) : "f"(a), "f"(b), "f"(c)); \
  out[at] = __float_as_uint(d);                          \
  at += gridDim.x * blockDim.x;
  BT_FLOATS(BT_T, BT_B, BT_O, BT_X)
}

// Any bits, numbers of a size, and ones that are nearly whole.
Words SomeFloats(size_t count, uint32_t seed) {
  constexpr float kEdges[] = {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, 1.5f, 2.5f, 1e-42f, 3e9f, -3e9f};
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 3);
  Words words(count);
  for (uint32_t& word : words) {
    const uint32_t kind = random() % 4;
    word = kind == 0   ? random()
           : kind == 1 ? Bits(kEdges[random() % std::size(kEdges)])
           : kind == 2 ? Bits(std::round(normal(random)) / 2)
                       : Bits(normal(random));
  }
  return words;
}

GPU_TEST(ArithmeticTest, Floats) {
  const Words in = SomeFloats(kCount * 3, 2);
  std::vector<const char*> names;
  Words want;
#define BT_HOST_FLOAT(text, expression)                                          \
  names.push_back(text);                                                         \
  for (size_t n = 0; n < kCount; ++n) {                                          \
    [[maybe_unused]] const float a = Float(in[3 * n]), b = Float(in[3 * n + 1]), \
                                 c = Float(in[3 * n + 2]);                       \
    want.push_back(expression);                                                  \
  }
  BT_FLOATS(BT_HOST_FLOAT, BT_HOST_FLOAT, BT_HOST_FLOAT, BT_HOST_FLOAT)
  const Words got = Run(FloatKernel, dim3(kBlocks), dim3(kThreads), in, want.size());
  ExpectWords("floats", got, want, SameFloat, [&](size_t n) {
    const size_t at = n % kCount * 3;
    return std::string("of ") + names[n / kCount] + " of " + std::to_string(Float(in[at])) + ", " +
           std::to_string(Float(in[at + 1])) + ", " + std::to_string(Float(in[at + 2]));
  });
}

__global__ void DownKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const float* at = reinterpret_cast<const float*>(in) + thread * 3;
  out[thread] = __float_as_uint(__fmaf_rd(at[0], at[1], at[2]));
}

GPU_TEST(ArithmeticTest, AProductAndSumRoundedDown) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  Words in(kCount * 3), want;
  for (uint32_t& word : in) word = Bits(normal(random));
  for (size_t n = 0; n < kCount; ++n)
    want.push_back(Bits(RoundedDown(Float(in[3 * n]), Float(in[3 * n + 1]), Float(in[3 * n + 2]))));
  ExpectWords("fma.rm", Run(DownKernel, dim3(kBlocks), dim3(kThreads), in, kCount), want);
}

__global__ void ApproximateKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x, all = gridDim.x * blockDim.x;
  const float x = __uint_as_float(in[thread]);
  float y[4];
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y[0]) : "f"(x));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y[1]) : "f"(x));
  asm("div.approx.f32 %0, 3.0, %1;" : "=f"(y[2]) : "f"(x));
  asm("ex2.approx.f32 %0, %1;" : "=f"(y[3]) : "f"(x));
  for (int n = 0; n < 4; ++n) out[n * all + thread] = __float_as_uint(y[n]);
}

// Within the errors that the PTX document promises.
GPU_TEST(ArithmeticTest, ApproximationsAreNear) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal(0, 20);
  Words in(kCount);
  for (uint32_t& word : in) word = Bits(normal(random));
  const Words got = Run(ApproximateKernel, dim3(kBlocks), dim3(kThreads), in, 4 * kCount);
  double worst[4] = {};
  for (size_t n = 0; n < kCount; ++n) {
    const double x = Float(in[n]), want[] = {std::exp2(x), 1 / x, 3 / x, std::exp2(x)};
    for (size_t k = 0; k < 4; ++k)
      worst[k] = std::max(worst[k], std::abs(Float(got[k * kCount + n]) / want[k] - 1));
  }
  GPU_EXPECT_LE(worst[0], std::ldexp(1.5, -22));
  GPU_EXPECT_LE(worst[1], std::ldexp(1.0, -22));
  GPU_EXPECT_LE(worst[2], std::ldexp(1.0, -21));
  GPU_EXPECT_LE(worst[3], std::ldexp(1.5, -22));
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
