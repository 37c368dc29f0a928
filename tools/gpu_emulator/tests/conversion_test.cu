// Conversions between f32 and the short floats. The host rounds by arithmetic alone: to a multiple
// of the last place, ties to the even one.

#include <cmath>
#include <limits>

#include "instruction_test.h"

namespace baltoro::instructions {
namespace {

constexpr int kThreads = 256;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Format {
  int fraction_bits, least_exponent;
  double most;
  bool saturates;  // else infinite beyond
  int bits, bias;
  bool has_infinity;
};
constexpr Format kE4m3 = {3, -6, 448, true, 8, 7, false};
constexpr Format kHalf = {10, -14, 65504, false, 16, 15, true};
constexpr Format kBf16 = {7, -126, 3.3895313892515355e38, false, 16, 127, true};

double Round(const Format& f, double x) {
  if (std::isnan(x) || x == 0) return x;
  const int exponent = std::isinf(x) ? 0 : std::max(std::ilogb(x), f.least_exponent);
  const double unit = std::ldexp(1.0, exponent - f.fraction_bits);
  const double rounded = std::isinf(x) ? x : std::nearbyint(x / unit) * unit;
  if (std::abs(rounded) <= f.most) return std::copysign(rounded, x);
  return std::copysign(f.saturates ? f.most : kInfinity, x);
}

double Decode(const Format& f, uint32_t code) {
  const uint32_t fraction = code & ((1u << f.fraction_bits) - 1);
  const uint32_t field = code >> f.fraction_bits & ((1u << (f.bits - 1 - f.fraction_bits)) - 1);
  const bool negative = (code >> (f.bits - 1) & 1) != 0;
  const bool top = field == (1u << (f.bits - 1 - f.fraction_bits)) - 1;
  double value = field == 0 ? std::ldexp(fraction, f.least_exponent - f.fraction_bits)
                            : std::ldexp((1u << f.fraction_bits) + fraction,
                                         static_cast<int>(field) - f.bias - f.fraction_bits);
  if (top && f.has_infinity) value = fraction == 0 ? kInfinity : std::nan("");
  if (top && !f.has_infinity && fraction == (1u << f.fraction_bits) - 1) value = std::nan("");
  return negative ? -value : value;
}

bool SameNumber(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b && std::signbit(a) == std::signbit(b);
}

// Numbers of the format, the middles between them, the floats beside those, and any bits.
Words Inputs(const Format& f) {
  Words in;
  const uint32_t codes = 1u << f.bits, step = f.bits == 8 ? 1 : 7;
  for (uint32_t code = 0; code + 1 < codes; code += step) {
    const double low = Decode(f, code), high = Decode(f, code + 1);
    const auto middle = static_cast<float>((low + high) / 2);
    for (const float x : {static_cast<float>(low), middle, std::nextafter(middle, 1e38f),
                          std::nextafter(middle, -1e38f)})
      in.push_back(Bits(x));
  }
  const Words more = SomeWords(4096, 5);
  in.insert(in.end(), more.begin(), more.end());
  for (const float x : {447.9f, 448.0f, 463.9f, 464.0f, 464.1f, 480.0f, 1e9f, 65519.0f, 65520.0f})
    for (const float sign : {1.0f, -1.0f}) in.push_back(Bits(sign * x));
  in.resize((in.size() + 2 * kThreads - 1) / (2 * kThreads) * (2 * kThreads), Bits(1.0f));
  return in;
}

enum class To { kE4m3, kHalf, kBf16 };

template <To kTo>
__global__ void NarrowKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t thread = blockIdx.x * blockDim.x + threadIdx.x;
  const float low = __uint_as_float(in[2 * thread]), high = __uint_as_float(in[2 * thread + 1]);
  uint32_t packed = 0;
  if constexpr (kTo == To::kE4m3) {
    uint16_t codes;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    packed = codes;
  } else if constexpr (kTo == To::kHalf) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  }
  out[thread] = packed;
}

template <To kTo>
void ExpectNarrowed(const Format& f) {
  const Words in = Inputs(f);
  const size_t pairs = in.size() / 2;
  const Words got = Run(NarrowKernel<kTo>, dim3(static_cast<unsigned>(pairs / kThreads)),
                        dim3(kThreads), in, pairs);
  size_t wrong = 0;
  for (size_t n = 0; n < in.size(); ++n) {
    const uint32_t code = got[n / 2] >> (f.bits * (n % 2)) & ((1u << f.bits) - 1);
    const double want = Round(f, Float(in[n]));
    if (!SameNumber(Decode(f, code), want) && wrong++ == 0)
      testing::ReportUnequal(__FILE__, __LINE__, "the number nearest to a float", Decode(f, code),
                             want);
  }
  GPU_EXPECT_EQ(wrong, size_t{0});
}

GPU_TEST(ConversionTest, FloatsToE4m3) {
  ExpectNarrowed<To::kE4m3>(kE4m3);
}
GPU_TEST(ConversionTest, FloatsToHalves) {
  ExpectNarrowed<To::kHalf>(kHalf);
}
GPU_TEST(ConversionTest, FloatsToBf16) {
  ExpectNarrowed<To::kBf16>(kBf16);
}

__global__ void WidenKernel(const uint32_t*, uint32_t* out) {
  const uint32_t code = blockIdx.x * blockDim.x + threadIdx.x;
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(static_cast<uint16_t>(code)));
  out[code] = __float_as_uint(wide);
}

GPU_TEST(ConversionTest, HalvesToFloats) {
  constexpr uint32_t kCodes = 1 << 16;
  Words want;
  for (uint32_t code = 0; code < kCodes; ++code)
    want.push_back(Bits(static_cast<float>(Decode(kHalf, code))));
  ExpectWords("halves", Run(WidenKernel, dim3(kCodes / kThreads), dim3(kThreads), {}, kCodes), want,
              SameFloat);
}

__global__ void PairsKernel(const uint32_t*, uint32_t* out) {
  const uint32_t pair = blockIdx.x * blockDim.x + threadIdx.x;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(out[pair]) : "h"(static_cast<uint16_t>(pair)));
}

GPU_TEST(ConversionTest, E4m3ToHalves) {
  constexpr uint32_t kPairs = 1 << 16;
  const Words got = Run(PairsKernel, dim3(kPairs / kThreads), dim3(kThreads), {}, kPairs);
  size_t wrong = 0;
  for (uint32_t pair = 0; pair < kPairs; ++pair) {
    wrong += !SameNumber(Decode(kHalf, got[pair] & 0xFFFF), Decode(kE4m3, pair & 255));
    wrong += !SameNumber(Decode(kHalf, got[pair] >> 16), Decode(kE4m3, pair >> 8));
  }
  GPU_EXPECT_EQ(wrong, size_t{0});
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
