#pragma once

// fp8_rows16 (fp8_rows16.cu): up to 16 rows by kFp8Block matrices whose input is rounded to e4m3,
// in strips of 8 rows of weights. How blocks share a matrix, and what a block keeps in shared
// memory.

#include <optional>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

struct Fp8Rows16Plan {
  int32_t strips = 0;   // of a block: 1, 2 or 7
  int32_t warps_k = 0;  // warps that share the columns of a strip
  bool tall = false;    // 9 to 16 rows
  bool coded = false;   // x is codes already; else each block rounds it
  LaunchShape launch = {};

  bool operator==(const Fp8Rows16Plan&) const = default;
};

namespace fp8_rows16 {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kStripRows = 8;
inline constexpr int kRowsMax = 16;
inline constexpr int kHalfRows = 8;     // of the matrix instruction
inline constexpr int kQueryStrips = 2;  // of a block of queries
inline constexpr int kUnit = 256;       // columns that a warp rounds together
inline constexpr int kUnitsMax = 8;     // of a warp
inline constexpr int kPad = 64;         // bytes between rows in shared memory: they use all banks
inline constexpr int kStepsMax = 64;

// A block's shared memory, in bytes.
struct Places {
  int row, barrier, scales, x_scales, sums, codes, end;

  constexpr Places(int strips, int steps, int rows, bool tall)
      : row(steps * 128 + kPad),
        barrier(0),
        scales(strips * kStripRows * row),
        x_scales(scales + strips * steps * 4),
        sums((x_scales + rows * steps * 4 + 15) / 16 * 16),
        codes(0),
        end(0) {
    barrier = sums + kWarps * strips * (tall ? 2 : 1) * 32 * 8;
    codes = barrier + 16;
    end = codes + rows * row;
  }
};

}  // namespace fp8_rows16

// x by w into out, up to 8 rows; none where the kernel does not take them or `tiles` is faster.
// `coded`: x is there as codes.
std::optional<Fp8Rows16Plan> PlanFp8Rows16(
    const RowsFacts& x, bool coded, const MatrixFacts& w, const RowsFacts& out, const Card& card);
// Rows of x are gate, then up: of silu(gate) * up. Up to 16 rows.
std::optional<Fp8Rows16Plan> PlanFp8Rows16Gated(const RowsFacts& x,
                                                const MatrixFacts& w,
                                                const RowsFacts& out,
                                                const Card& card);
// Beside blocks of the router's product, each block one strip.
std::optional<Fp8Rows16Plan> PlanFp8Rows16Router(const RowsFacts& x,
                                                 bool coded,
                                                 const MatrixFacts& w,
                                                 const RowsFacts& out,
                                                 int64_t experts,
                                                 const Card& card);
// Queries with the norm before them: x is the first columns of rows, and a block for each row's
// cached token stands behind those of the product.
std::optional<Fp8Rows16Plan> PlanFp8Rows16Queries(const RowsFacts& x,
                                                  const MatrixFacts& w,
                                                  const RowsFacts& out,
                                                  const Card& card);

}  // namespace baltoro::cuda
