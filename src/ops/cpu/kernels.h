#pragma once

// What each instruction set does its own way, behind one table: small products
// of packed operands (panel.h) and the vector loops around them. Everything
// here runs on the calling thread.

#include <cstdint>

#include "ops/cpu/isa.h"
#include "ops/cpu/panel.h"
#include "tensor/dtype.h"

namespace baltoro::cpu {

// Where the left operand lies, in bytes: tiles (panel.h), or plain rows whose
// length is a multiple of 32.
struct LeftOperand {
  const void* data = nullptr;
  int64_t row = 0;       // from one row to the next inside 16 rows
  int64_t block = 0;     // from 32 k to the next 32
  int64_t row_tile = 0;  // from 16 rows to the next 16
};

// Panels that hold `columns` columns (panel.h).
struct RightOperand {
  const void* panels = nullptr;
  int64_t k_blocks = 0;
  int64_t columns = 0;
  bool cached = false;         // nothing need be fetched ahead
  const void* next = nullptr;  // the panel that the caller will need after these, if it knows
};

// One block of 64 keys for up to 32 rows (queries or heads) of attention.
struct SoftmaxBlock {
  float* scores = nullptr;          // [64, 32]: key, row; overwritten
  const int32_t* limits = nullptr;  // [32]: the row sees keys below this
  int64_t rows = 0;
  float scale = 0;  // positive; a score times this is an exponent of 2
  bool round_to_bf16 = false;
  float* highest = nullptr;       // [32] running maximum of each row, scaled, updated
  float* sum = nullptr;           // [32] running sum of 2^(score - highest), updated
  float* correction = nullptr;    // [32] out: what earlier sums must be multiplied with
  void* probabilities = nullptr;  // out: tiles of [32, 64]
};

struct Kernels {
  DType tile = DType::kBf16;   // elements of the left operand
  DType panel = DType::kBf16;  // elements of the right operand

  // c[r, n] = (accumulate ? c[r, n] : 0) + sum_k a[r, k] b[k, n], for the
  // columns of the panels at `b`. Sums run over rising k for each element
  // alone, whatever `rows` and `columns`. Whole halves of 16 columns are
  // written.
  void (*multiply)(const LeftOperand& a,
                   int64_t rows,
                   const RightOperand& b,
                   float* c,
                   int64_t ldc,
                   bool accumulate) = nullptr;

  // Returns whether any correction differs from 1.
  bool (*softmax_block)(const SoftmaxBlock& block) = nullptr;

  // Packs `keys` rows of values [keys, width] (row stride in elements) as
  // panels with k = 64; keys beyond are zero. Source bf16 or f32, rounded to
  // `panel`.
  void (*pack_values)(void* dst,
                      const void* src,
                      DType src_type,
                      int64_t stride,
                      int64_t keys,
                      int64_t width,
                      const void* next) = nullptr;

  // Packs `rows` (up to 32) rows of k elements of the panel's type as one
  // panel.
  void (*pack_panel)(void* dst, const void* src, int64_t stride, int64_t rows, int64_t k) = nullptr;

  // Writes [rows, count] f32 values (row stride in elements) to columns [begin,
  // begin + count) of the first rows of `tiles`. `round`: to bf16 first,
  // whatever the tiles hold.
  void (*store_tiles)(void* tiles,
                      int64_t row_tile_elements,
                      const float* src,
                      int64_t stride,
                      int64_t rows,
                      int64_t begin,
                      int64_t count,
                      bool round) = nullptr;

  void (*round_to_bf16)(Bf16* out, const float* in, int64_t n) = nullptr;
  void (*widen)(float* out, const Bf16* in, int64_t n) = nullptr;
  // Runs of 32 elements, `stride` floats from one to the next in `out`.
  void (*widen_blocks)(float* out, int64_t stride, const Bf16* in, int64_t blocks) = nullptr;
  // out[i] = silu(gate[i]) * up[i]; out may be gate.
  void (*silu_mul)(float* out, const float* gate, const float* up, int64_t n) = nullptr;
  // out[i] = gelu(x[i]) by its approximation with tanh; out may be x.
  void (*gelu_tanh)(float* out, const float* x, int64_t n) = nullptr;
  // y[i] += s * x[i]
  void (*add_scaled)(float* y, float s, const float* x, int64_t n) = nullptr;
  // y[i] *= s
  void (*scale)(float* y, float s, int64_t n) = nullptr;

  // The largest magnitude as the bits of a float; of a row with a NaN, a NaN.
  uint32_t (*largest_bits)(const float* x, int64_t n) = nullptr;
  // The integers nearest to x[i] / scale + offset, ties to even, within i8. All are finite.
  void (*to_int8)(const float* x, int64_t n, float scale, float offset, int8_t* out) = nullptr;
  // x[i] = the value of e4m3 nearest to x[i] / scale, ties to even.
  void (*round_to_e4m3)(float* x, int64_t n, float scale) = nullptr;
};

// The table for activations `act` and weights stored as `stored`, on the active
// instruction set.
const Kernels& KernelsFor(DType act, DType stored);

// Each is defined in a file compiled for its instruction set alone.
extern const Kernels kAvx2Bf16, kAvx2F32;
extern const Kernels kAvx512WideningBf16, kAvx512F32;
extern const Kernels kAvx512Bf16Tiles;  // its `multiply` is one of the two below
void MultiplyAvx512Bf16(const LeftOperand& a,
                        int64_t rows,
                        const RightOperand& b,
                        float* c,
                        int64_t ldc,
                        bool accumulate);
void MultiplyAmx(const LeftOperand& a,
                 int64_t rows,
                 const RightOperand& b,
                 float* c,
                 int64_t ldc,
                 bool accumulate);

}  // namespace baltoro::cpu
