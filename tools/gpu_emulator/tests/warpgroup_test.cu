// Matrix products of a warpgroup (wgmma): operands in shared memory in the 128-byte swizzle or in
// registers, plain and transposed. Factors are small whole numbers, so that every sum is exact.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include "instruction_test.h"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::instructions {
namespace {

constexpr uint32_t kThreads = 128, kRows = 64, kLine = 128;  // bytes of a row of an operand

enum class Factors { kBf16, kHalf, kE4m3, kInt8 };
constexpr uint32_t BytesOf(Factors f) {
  return f == Factors::kBf16 || f == Factors::kHalf ? 2 : 1;
}

uint32_t Code(Factors f, int x) {
  const auto value = static_cast<float>(x);
  switch (f) {
    case Factors::kBf16:
      return __bfloat16_as_ushort(__float2bfloat16(value));
    case Factors::kHalf:
      return __half_as_ushort(__float2half(value));
    case Factors::kE4m3:
      return __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
    default:
      return static_cast<uint8_t>(x);
  }
}

// Where byte `at` of an operand lies: of each 128 bytes the 16-byte pieces are exchanged by the
// line's number in its group of eight.
uint32_t Swizzled(uint32_t at) {
  return at ^ (at >> 7 & 7) << 4;
}

using Matrix = std::vector<std::vector<int>>;

Matrix SomeMatrix(size_t rows, size_t columns, uint32_t seed) {
  std::mt19937 random(seed);
  Matrix matrix(rows, std::vector<int>(columns));
  for (auto& row : matrix)
    for (int& x : row) x = static_cast<int>(random() % 15) - 7;
  return matrix;
}

void Put(Words& words, uint32_t at, uint32_t code) {
  words[at / 4] |= code << (8 * (at % 4));
}

// Rows of 128 bytes, one after the other, from word `begin`.
void PutLines(Words& words, uint32_t begin, Factors f, const Matrix& lines) {
  const uint32_t bytes = BytesOf(f);
  for (uint32_t r = 0; r < lines.size(); ++r)
    for (uint32_t c = 0; c < lines[r].size(); ++c)
      Put(words, begin * 4 + Swizzled(r * kLine + c * bytes), Code(f, lines[r][c]));
}

// d as a warpgroup's threads hold it, `n` columns: want[thread][n / 2].
Words SumsOf(const Matrix& a, const Matrix& b_lines, bool b_transposed, bool whole) {
  const size_t n = b_transposed ? b_lines[0].size() : b_lines.size();
  Words want;
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    for (uint32_t i = 0; i < n / 2; ++i) {
      const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + i / 2 % 2 * 8;
      const uint32_t column = i / 4 * 8 + thread % 4 * 2 + i % 2;
      int sum = 0;
      for (size_t k = 0; k < a[0].size(); ++k)
        sum += a[row][k] * (b_transposed ? b_lines[k][column] : b_lines[column][k]);
      want.push_back(whole ? static_cast<uint32_t>(sum) : Bits(static_cast<float>(sum)));
    }
  }
  return want;
}

__device__ void Fill(uint32_t* shared, const uint32_t* in, uint32_t words) {
  for (uint32_t n = threadIdx.x; n < words; n += kThreads) shared[n] = in[n];
  hopper::FenceAsyncProxy();
  __syncthreads();
}

// ---- 64 x 64, both operands' lines along the sum of 64 numbers

constexpr uint32_t kTile = kRows * kLine / 4;  // words

template <Factors kFactors>
__global__ void PlainKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(1024) uint32_t operands[2 * kTile];
  Fill(operands, in, 2 * kTile);
  const uint64_t a = hopper::OperandDescriptor(hopper::SharedAddress(operands), 0),
                 b = hopper::OperandDescriptor(hopper::SharedAddress(operands + kTile), 0);
  float d[32] = {};
  hopper::FenceProducts();
  for (uint32_t step = 0; step < 4; ++step) {
    if constexpr (kFactors == Factors::kBf16)
      hopper::ProductN64(d, hopper::Advance(a, step * 32), hopper::Advance(b, step * 32), step > 0);
    else
      hopper::ProductN64Halves(d, hopper::Advance(a, step * 32), hopper::Advance(b, step * 32),
                               step > 0);
  }
  hopper::CommitProducts();
  hopper::WaitProducts<0>();
  hopper::Pin(d);
  for (uint32_t n = 0; n < 32; ++n) out[threadIdx.x * 32 + n] = __float_as_uint(d[n]);
}

template <Factors kFactors>
void ExpectPlain() {
  const Matrix a = SomeMatrix(kRows, 64, 40), b = SomeMatrix(kRows, 64, 41);
  Words in(2 * kTile);
  PutLines(in, 0, kFactors, a);
  PutLines(in, kTile, kFactors, b);
  const Words want = SumsOf(a, b, false, false);
  ExpectWords("wgmma n64", Run(PlainKernel<kFactors>, dim3(1), dim3(kThreads), in, want.size()),
              want);
}

GPU_TEST(WarpgroupTest, BothOperandsAlongTheSum) {
  ExpectPlain<Factors::kBf16>();
  ExpectPlain<Factors::kHalf>();
}

// ---- 64 x 256, lines of b across the sum of 16, in groups of 64 columns; a from shared memory or
// from registers

constexpr uint32_t kGroup = 16 * kLine / 4, kWide = 256;

template <Factors kFactors, bool kRegisters>
__global__ void WideKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(1024) uint32_t operands[kTile + 4 * kGroup];
  Fill(operands, in, kTile + 4 * kGroup);
  const uint64_t a = hopper::OperandDescriptor(hopper::SharedAddress(operands), 0),
                 b = hopper::OperandDescriptor(hopper::SharedAddress(operands + kTile), kGroup * 4);
  float d[128] = {};
  if constexpr (kRegisters) {
    uint32_t held[4];
    for (uint32_t n = 0; n < 4; ++n) held[n] = in[kTile + 4 * kGroup + threadIdx.x * 4 + n];
    hopper::FenceProducts();
    if constexpr (kFactors == Factors::kBf16)
      hopper::ProductN256(d, held, b, 0);
    else
      hopper::ProductN256Halves(d, held, b, 0);
  } else {
    hopper::FenceProducts();
    if constexpr (kFactors == Factors::kBf16)
      hopper::ProductN256(d, a, b, 0);
    else
      hopper::ProductN256Halves(d, a, b, 0);
  }
  hopper::CommitProducts();
  hopper::WaitProducts<0>();
  hopper::Pin(d);
  for (uint32_t n = 0; n < 128; ++n) out[threadIdx.x * 128 + n] = __float_as_uint(d[n]);
}

template <Factors kFactors, bool kRegisters>
void ExpectWide() {
  const Matrix a = SomeMatrix(kRows, 16, 42), b = SomeMatrix(16, kWide, 43);
  Words in(kTile + 4 * kGroup);
  PutLines(in, 0, kFactors, a);
  for (uint32_t group = 0; group < 4; ++group) {
    Matrix part(16);
    for (uint32_t k = 0; k < 16; ++k)
      part[k].assign(b[k].begin() + group * 64, b[k].begin() + (group + 1) * 64);
    PutLines(in, kTile + group * kGroup, kFactors, part);
  }
  for (uint32_t thread = 0; thread < kThreads; ++thread) {
    for (uint32_t n = 0; n < 4; ++n) {
      const uint32_t row = thread / 32 * 16 + thread % 32 / 4 + n % 2 * 8;
      const uint32_t column = thread % 4 * 2 + n / 2 * 8;
      in.push_back(Code(kFactors, a[row][column]) | Code(kFactors, a[row][column + 1]) << 16);
    }
  }
  const Words want = SumsOf(a, b, true, false);
  ExpectWords("wgmma n256",
              Run(WideKernel<kFactors, kRegisters>, dim3(1), dim3(kThreads), in, want.size()),
              want);
}

GPU_TEST(WarpgroupTest, LinesOfBAcrossTheSum) {
  ExpectWide<Factors::kBf16, false>();
  ExpectWide<Factors::kHalf, false>();
  ExpectWide<Factors::kBf16, true>();
  ExpectWide<Factors::kHalf, true>();
}

// ---- 64 x 32 of bytes, a sum of 128

template <Factors kFactors>
__global__ void BytesKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(1024) uint32_t operands[kTile + kTile / 2];
  Fill(operands, in, kTile + kTile / 2);
  const uint64_t a = hopper::OperandDescriptor(hopper::SharedAddress(operands), 0),
                 b = hopper::OperandDescriptor(hopper::SharedAddress(operands + kTile), 0);
  uint32_t d[16] = {};
#define BT_BYTES(type, kept, last)                                                              \
  asm volatile(                                                                                 \
      "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"                                                \
      "wgmma.mma_async.sync.aligned.m64n32k32." type                                            \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15},"                \
      " %16, %17, p" last "; }"                                                                 \
      : kept(d[0]), kept(d[1]), kept(d[2]), kept(d[3]), kept(d[4]), kept(d[5]), kept(d[6]),     \
        kept(d[7]), kept(d[8]), kept(d[9]), kept(d[10]), kept(d[11]), kept(d[12]), kept(d[13]), \
        kept(d[14]), kept(d[15])                                                                \
      : "l"(hopper::Advance(a, step * 32)), "l"(hopper::Advance(b, step * 32)), "r"(step))
  hopper::FenceProducts();
#pragma unroll
  for (uint32_t step = 0; step < 4; ++step) {
    if constexpr (kFactors == Factors::kInt8)
      BT_BYTES("s32.s8.s8", "+r", "");
    else
      BT_BYTES("f32.e4m3.e4m3", "+r", ", 1, 1");
  }
  hopper::CommitProducts();
  hopper::WaitProducts<0>();
#pragma unroll
  for (uint32_t n = 0; n < 16; ++n) {
    asm volatile("" : "+r"(d[n])::"memory");
    out[threadIdx.x * 16 + n] = d[n];
  }
}

template <Factors kFactors>
void ExpectBytes() {
  const Matrix a = SomeMatrix(kRows, 128, 44), b = SomeMatrix(32, 128, 45);
  Words in(kTile + kTile / 2);
  PutLines(in, 0, kFactors, a);
  PutLines(in, kTile, kFactors, b);
  const Words want = SumsOf(a, b, false, kFactors == Factors::kInt8);
  ExpectWords("wgmma of bytes",
              Run(BytesKernel<kFactors>, dim3(1), dim3(kThreads), in, want.size()), want);
}

GPU_TEST(WarpgroupTest, FactorsOfBytes) {
  ExpectBytes<Factors::kE4m3>();
  ExpectBytes<Factors::kInt8>();
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
