#pragma once

// bf16_rows16 (bf16_rows16.cu): up to 16 rows by bf16 matrices, in strips of 8 rows of weights. How
// blocks share a matrix, and what a block keeps in shared memory.

#include <optional>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

struct Bf16Rows16Plan {
  int32_t strips = 0;  // of a block: 1, 2 or 7
  bool tall = false;   // 9 to 16 rows
  LaunchShape launch = {};

  bool operator==(const Bf16Rows16Plan&) const = default;
};

namespace bf16_rows16 {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kStripRows = 8;
inline constexpr int kGroup = 32;  // columns: 16 bytes a lane
inline constexpr int kChunk = 7;   // groups of a warp that are asked for together
inline constexpr int kChunks = 4;  // of a warp at most
inline constexpr int kGroupsMax = kChunk * kChunks * kWarps;
// Of a block. A block of [7168, 1024] and one of a matrix of 7168 columns just fill a
// multiprocessor.
inline constexpr int kSharedMax = 116480;
inline constexpr int kHalfRows = 8;  // of the matrix instruction
inline constexpr int kRowsMax = 2 * kHalfRows;
inline constexpr int kQueryStrips = 2;  // of a block of queries
inline constexpr int kBarrierBytes = 8 * kChunks;
// Behind the warps' sums: floats of each token and warp, twice.
inline constexpr int kTokenBytes = kWarps * kRowsMax * 4;

// Where rows of weights lie in shared memory: the second of each two is shifted by half of what all
// banks give at once, so that eight lanes that read of both touch each bank once.
struct WeightRows {
  int row, shift, pair;  // bytes

  constexpr explicit WeightRows(int k)
      : row(k * 2), shift(k * 2 % 128 == 0 ? 64 : 0), pair(2 * row + shift) {}
  constexpr int At(int r) const { return r / 2 * pair + r % 2 * (row + shift); }
  // All, and behind them the barriers, unless the last shift has room for it: it must not lie where
  // the weights were and the warps' sums come to lie.
  constexpr int Bytes(int rows) const {
    return InShift(rows) ? rows / 2 * pair : Barrier(rows) + kBarrierBytes;
  }
  constexpr int Barrier(int rows) const {
    if (InShift(rows)) return LastShift(rows);
    const int weights = rows / 2 * pair;
    return weights > Sums(rows) ? weights : Sums(rows);
  }

 private:
  constexpr static int Sums(int rows) {
    return rows * (kWarps * 32 * 2 * 8 / kStripRows) + 2 * kTokenBytes;
  }
  constexpr int LastShift(int rows) const { return (rows / 2 - 1) * pair + row; }
  constexpr bool InShift(int rows) const { return shift > 0 && LastShift(rows) >= Sums(rows); }
};

}  // namespace bf16_rows16

// x by w into out; none where the kernel does not take them or another is faster.
std::optional<Bf16Rows16Plan> PlanBf16Rows16(const RowsFacts& x,
                                             const MatrixFacts& w,
                                             const RowsFacts& out,
                                             const Card& card);
// x by both matrices in one launch.
std::optional<Bf16Rows16Plan> PlanBf16Rows16(const RowsFacts& x,
                                             const MatrixFacts& w,
                                             const RowsFacts& out,
                                             const MatrixFacts& second,
                                             const RowsFacts& second_out,
                                             const Card& card);
// Queries: x is wider than w, heads are whole strips, and a block for each row's cached token
// stands behind those of the product.
std::optional<Bf16Rows16Plan> PlanBf16Rows16Queries(const RowsFacts& x,
                                                    const MatrixFacts& w,
                                                    const RowsFacts& out,
                                                    const Card& card);

}  // namespace baltoro::cuda
