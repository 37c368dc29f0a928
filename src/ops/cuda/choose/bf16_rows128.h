#pragma once

// bf16_rows128 (bf16_rows128.cc): 9 to 128 rows by bf16 matrices, whose columns a cluster of blocks
// shares. Its plan, and a block's shared memory.

#include <algorithm>
#include <optional>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

inline constexpr int kBf16Rows128Min = 9;         // fewer are for bf16_rows16
inline constexpr int kBf16Rows128Step = 64;       // columns of a stage: 128 bytes of each row
inline constexpr int kBf16Rows128GroupRows = 64;  // rows of weights of a warpgroup
inline constexpr int kBf16Rows128SplitMax = 8;
inline constexpr int kBf16Rows128GroupsMax = 3;
// Pairs of a thread's results whose angles are loaded before the products; a rotating plan has
// tile / 4 / split of them.
inline constexpr int kBf16Rows128Angles = 4;
// Of a block that has a multiprocessor almost for itself, without its barriers.
inline constexpr int kBf16Rows128Whole = 170 << 10;

// Bytes of a stage that holds so many rows.
constexpr int Bf16Rows128StageBytes(int rows) {
  return (rows * kBf16Rows128Step * 2 + 1023) / 1024 * 1024;
}
// What a block's share of the sums of a cluster takes, where the stages were.
constexpr int Bf16Rows128SumsBytes(int groups, int tile) {
  return groups * kBf16Rows128GroupRows * tile * 4;
}

// What the choice of a form depends on.
struct Bf16Rows128Shape {
  int64_t rows = 0, k = 0;
  int64_t n = 0, second_n = 0;  // of the matrices of one launch; second_n 0: one matrix
  bool rotates = false;
};

struct Bf16Rows128Plan {
  int groups = 0;  // of 64 rows of weights a block: 1 to 3 (3: up to 64 rows of x, not rotated)
  int tile = 0;    // rows of x a block: 32, 64 or 128
  int split = 0;   // blocks that share the columns: 1, 2, 4 or 8
  // Rows of weights of a block: an even number, up to groups * 64; 0: that.
  int strip_rows = 0;
  // Stages of a block's rings, 64 columns each, of weights and of x.
  int stages = 0, inputs = 0;

  bool operator==(const Bf16Rows128Plan&) const = default;

  int StripRows() const { return strip_rows > 0 ? strip_rows : groups * kBf16Rows128GroupRows; }
  int Strips(int64_t n) const { return static_cast<int>(SharesOf(n, StripRows())); }
  // Of x in a stage: of one tile no more than there are.
  int InputRows(int64_t rows) const {
    return static_cast<int>(std::min<int64_t>(tile, (rows + 7) / 8 * 8));
  }
};

// Weights, x, barriers; sums go where weights and x were. Matrix instructions read whole groups of
// rows and whole tiles, beyond the rows that a stage has.
struct Bf16Rows128Places {
  int early;                     // stages of weights that are asked for at once, at first
  int stage_bytes, input_bytes;  // of one of each
  int barriers_at, shared;       // in shared memory: barriers, all

  Bf16Rows128Places(const Bf16Rows128Plan& plan, int64_t rows);
};

// groups 0: the shape is not for this kernel.
Bf16Rows128Plan PlanBf16Rows128(const Bf16Rows128Shape& shape, const Card& card);
// Gives a plan without them its rings.
void FitBf16Rows128Rings(const Bf16Rows128Shape& shape, const Card& card, Bf16Rows128Plan& plan);
LaunchShape LaunchShapeOf(const Bf16Rows128Plan& plan, const Bf16Rows128Shape& shape);

// Whether the kernel can be given these at all, in any number of rows: form, shapes, alignment.
bool Bf16Rows128Can(const RowsFacts& x, const MatrixFacts& w, const RowsFacts& out);

// x by w into out: up to 64 rows, of more the library is faster.
std::optional<Bf16Rows128Plan> PlanBf16Rows128(const RowsFacts& x,
                                               const MatrixFacts& w,
                                               const RowsFacts& out,
                                               const Card& card);
// x by both matrices in one launch: up to 128 rows.
std::optional<Bf16Rows128Plan> PlanBf16Rows128(const RowsFacts& x,
                                               const MatrixFacts& w,
                                               const RowsFacts& out,
                                               const MatrixFacts& second,
                                               const RowsFacts& second_out,
                                               const Card& card);
// The same of queries, rotated.
std::optional<Bf16Rows128Plan> PlanBf16Rows128Queries(const RowsFacts& x,
                                                      const MatrixFacts& w,
                                                      const RowsFacts& out,
                                                      const Card& card);

}  // namespace baltoro::cuda
