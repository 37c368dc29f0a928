// Matrix instructions of a warp: ldmatrix, stmatrix, mma. Factors are small whole numbers, so that
// every order of adding gives the same sum.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "instruction_test.h"

namespace baltoro::instructions {
namespace {

constexpr uint32_t kLanes = 32;
constexpr uint32_t kPadded = 12;  // words from a row of 8 numbers to the next
__device__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

enum class Load { kTwo, kFour, kFourTransposed };

template <Load kLoad>
__global__ void LoadKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint32_t rows[kLanes * kPadded];
  const uint32_t lane = threadIdx.x;
  for (uint32_t n = 0; n < 4; ++n) rows[lane * kPadded + n] = in[lane * 4 + n];
  __syncwarp();
  // Lane l names row l, from the last to the first.
  const uint32_t address = SharedAddress(rows + (kLanes - 1 - lane) * kPadded);
  uint32_t d[4] = {kNotWritten, kNotWritten, kNotWritten, kNotWritten};
  if constexpr (kLoad == Load::kTwo) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(address)
                 : "memory");
  } else if constexpr (kLoad == Load::kFour) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
                 : "r"(address)
                 : "memory");
  }
  for (uint32_t n = 0; n < 4; ++n) out[n * kLanes + lane] = d[n];
}

// Row r, column c of the matrix m that lanes 8 m .. 8 m + 7 name.
uint16_t Named(const Words& in, uint32_t m, uint32_t r, uint32_t c) {
  const uint32_t row = kLanes - 1 - (8 * m + r);
  return static_cast<uint16_t>(in[row * 4 + c / 2] >> (16 * (c % 2)));
}

template <Load kLoad>
void ExpectLoaded() {
  const Words in = SomeWords(kLanes * 4, 30);
  Words want(4 * kLanes, kNotWritten);
  for (uint32_t m = 0; m < (kLoad == Load::kTwo ? 2 : 4); ++m) {
    for (uint32_t l = 0; l < kLanes; ++l) {
      const uint32_t r = l / 4, c = l % 4 * 2;
      const bool across = kLoad == Load::kFourTransposed;
      const uint16_t low = across ? Named(in, m, c, r) : Named(in, m, r, c);
      const uint16_t high = across ? Named(in, m, c + 1, r) : Named(in, m, r, c + 1);
      want[m * kLanes + l] = low | static_cast<uint32_t>(high) << 16;
    }
  }
  ExpectWords("ldmatrix", Run(LoadKernel<kLoad>, dim3(1), dim3(kLanes), in, want.size()), want);
}

GPU_TEST(MatrixTest, Loads) {
  ExpectLoaded<Load::kTwo>();
  ExpectLoaded<Load::kFour>();
  ExpectLoaded<Load::kFourTransposed>();
}

template <bool kTransposed>
__global__ void StoreKernel(const uint32_t* in, uint32_t* out) {
  __shared__ alignas(16) uint32_t rows[kLanes * kPadded];
  const uint32_t lane = threadIdx.x;
  uint32_t d[4];
  for (uint32_t n = 0; n < 4; ++n) d[n] = in[n * kLanes + lane];
  const uint32_t address = SharedAddress(rows + (kLanes - 1 - lane) * kPadded);
  if constexpr (kTransposed) {
    asm volatile(
        "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
        "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
        : "memory");
  } else {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
                 "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
                 : "memory");
  }
  __syncwarp();
  for (uint32_t n = 0; n < 4; ++n) out[lane * 4 + n] = rows[lane * kPadded + n];
}

template <bool kTransposed>
void ExpectStored() {
  const Words in = SomeWords(kLanes * 4, 31);
  Words want(kLanes * 4);
  for (uint32_t m = 0; m < 4; ++m) {
    for (uint32_t r = 0; r < 8; ++r) {
      for (uint32_t c = 0; c < 8; ++c) {
        // Who holds the number: its row's four lanes, two columns each.
        const uint32_t held_row = kTransposed ? c : r, held_column = kTransposed ? r : c;
        const uint32_t word = in[m * kLanes + held_row * 4 + held_column / 2];
        const uint32_t number = word >> (16 * (held_column % 2)) & 0xFFFF;
        want[(kLanes - 1 - (8 * m + r)) * 4 + c / 2] |= number << (16 * (c % 2));
      }
    }
  }
  ExpectWords("stmatrix", Run(StoreKernel<kTransposed>, dim3(1), dim3(kLanes), in, want.size()),
              want);
}

GPU_TEST(MatrixTest, Stores) {
  ExpectStored<false>();
  ExpectStored<true>();
}

// ---- products: d[16][8] = a[16][k] b[k][8] + c[16][8]

enum class Factors { kBf16, kHalf, kInt8 };

// Words of a thread: 4 of a, 2 of b, 4 of c.
template <Factors kFactors>
__global__ void ProductKernel(const uint32_t* in, uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  const uint32_t* const w = in + lane * 10;
  uint32_t d[4];
#define BT_MMA(shape)                                                                         \
  asm volatile("mma.sync.aligned." shape                                                      \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"         \
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])                               \
               : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(w[4]), "r"(w[5]), "r"(w[6]), \
                 "r"(w[7]), "r"(w[8]), "r"(w[9]))
  if constexpr (kFactors == Factors::kInt8) {
    BT_MMA("m16n8k32.row.col.s32.s8.s8.s32");
  } else {
    float f[4];
#undef BT_MMA
#define BT_MMA(shape)                                                                 \
  asm volatile("mma.sync.aligned." shape                                              \
               " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};" \
               : "=f"(f[0]), "=f"(f[1]), "=f"(f[2]), "=f"(f[3])                       \
               : "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(w[4]), "r"(w[5]),    \
                 "f"(__uint_as_float(w[6])), "f"(__uint_as_float(w[7])),              \
                 "f"(__uint_as_float(w[8])), "f"(__uint_as_float(w[9])))
    if constexpr (kFactors == Factors::kBf16) BT_MMA("m16n8k16.row.col.f32.bf16.bf16.f32");
    if constexpr (kFactors == Factors::kHalf) BT_MMA("m16n8k16.row.col.f32.f16.f16.f32");
    for (int n = 0; n < 4; ++n) d[n] = __float_as_uint(f[n]);
  }
  for (uint32_t n = 0; n < 4; ++n) out[lane * 4 + n] = d[n];
}

template <Factors kFactors>
void ExpectProduct() {
  constexpr bool kWhole = kFactors == Factors::kInt8;
  constexpr uint32_t kDepth = kWhole ? 32 : 16, kPer = kDepth / 8;  // numbers of a word
  std::mt19937 random(32);
  const auto number = [&] {
    return static_cast<int>(random() % (kWhole ? 256 : 17)) - (kWhole ? 128 : 8);
  };
  int a[16][kDepth], b[kDepth][8], c[16][8];
  for (auto& row : a)
    for (int& x : row) x = number();
  for (auto& row : b)
    for (int& x : row) x = number();
  for (auto& row : c)
    for (int& x : row) x = number() * 100;
  const auto code = [](int x) -> uint32_t {
    if (kWhole) return static_cast<uint8_t>(x);
    const auto f = static_cast<float>(x);
    return kFactors == Factors::kBf16 ? __bfloat16_as_ushort(__float2bfloat16(f))
                                      : __half_as_ushort(__float2half(f));
  };
  Words in, want;
  for (uint32_t l = 0; l < kLanes; ++l) {
    const uint32_t g = l / 4, t = l % 4;
    for (uint32_t n = 0; n < 4; ++n) {
      uint32_t word = 0;
      for (uint32_t i = 0; i < kPer; ++i)
        word |= code(a[g + n % 2 * 8][n / 2 * kDepth / 2 + t * kPer + i]) << (32 / kPer * i);
      in.push_back(word);
    }
    for (uint32_t n = 0; n < 2; ++n) {
      uint32_t word = 0;
      for (uint32_t i = 0; i < kPer; ++i)
        word |= code(b[n * kDepth / 2 + t * kPer + i][g]) << (32 / kPer * i);
      in.push_back(word);
    }
    for (uint32_t n = 0; n < 4; ++n) {
      const uint32_t row = g + n / 2 * 8, column = 2 * t + n % 2;
      const auto bits = [](int x) {
        return kWhole ? static_cast<uint32_t>(x) : Bits(static_cast<float>(x));
      };
      in.push_back(bits(c[row][column]));
      int sum = c[row][column];
      for (uint32_t k = 0; k < kDepth; ++k) sum += a[row][k] * b[k][column];
      want.push_back(bits(sum));
    }
  }
  ExpectWords("mma", Run(ProductKernel<kFactors>, dim3(1), dim3(kLanes), in, want.size()), want);
}

GPU_TEST(MatrixTest, Products) {
  ExpectProduct<Factors::kBf16>();
  ExpectProduct<Factors::kHalf>();
  ExpectProduct<Factors::kInt8>();
}

}  // namespace
}  // namespace baltoro::instructions

INSTRUCTION_TEST_MAIN()
