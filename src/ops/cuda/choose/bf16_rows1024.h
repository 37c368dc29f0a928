#pragma once

// bf16_rows1024 (bf16_rows1024.cc): hundreds of rows by bf16 matrices that the library has no
// single launch for. Its plan, and a block's shared memory.

#include <algorithm>
#include <optional>

#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

inline constexpr int kBf16Rows1024Step = 64;   // columns of a stage: 128 bytes of each row
inline constexpr int kBf16Rows1024Tile = 128;  // rows of x of a block
inline constexpr int kBf16Rows1024StagesMax = 8;
inline constexpr int kBf16Rows1024ClusterMax = 8;
// Of a block: what is left for the next kernel's first blocks is a quarter of a multiprocessor's.
inline constexpr int kBf16Rows1024SharedMax = 172 * 1024;

// Of a block's stage.
constexpr int Bf16Rows1024StageBytes(int columns) {
  return (kBf16Rows1024Tile + columns) * kBf16Rows1024Step * 2;
}
// Stages of a block that has `steps` of them to do.
constexpr int Bf16Rows1024Stages(int columns, int steps) {
  return std::min(
      {steps, kBf16Rows1024StagesMax, kBf16Rows1024SharedMax / Bf16Rows1024StageBytes(columns)});
}

// What the choice of a form depends on.
struct Bf16Rows1024Shape {
  int64_t rows = 0, k = 0;
  int64_t n = 0, second_n = 0;  // of the matrices of one launch; second_n 0: one matrix
};

// columns 0: the shape is not for this kernel, as its blocks fill the card without sharing columns.
struct Bf16Rows1024Plan {
  int columns = 0;  // rows of weights a block: 64, 96 or 128
  int parts = 0;    // blocks that share the columns: 1, 2, 4 or 8
  int tiles = 0;    // of x that a cluster has: 1; 2 of 128 columns
  // parts * tiles <= 8

  bool operator==(const Bf16Rows1024Plan&) const = default;

  int Strips(int64_t n) const { return static_cast<int>(SharesOf(n, columns)); }
  int Slice() const { return static_cast<int>(SharesOf(kBf16Rows1024Tile, parts)); }
  int Stages(int64_t k) const {
    return Bf16Rows1024Stages(columns,
                              static_cast<int>(SharesOf(SharesOf(k, kBf16Rows1024Step), parts)));
  }
};

Bf16Rows1024Plan PlanBf16Rows1024(const Bf16Rows1024Shape& shape);
LaunchShape LaunchShapeOf(const Bf16Rows1024Plan& plan, const Bf16Rows1024Shape& shape);

// Whether the kernel can be given these at all, in any number of rows: form, shapes, alignment.
bool Bf16Rows1024Can(const RowsFacts& x, const MatrixFacts& w, const RowsFacts& out);

// The router's product by itself, where the shared experts' first matrix is of another form: 129 to
// 512 rows.
std::optional<Bf16Rows1024Plan> PlanBf16Rows1024Router(const RowsFacts& x,
                                                       const MatrixFacts& w,
                                                       const RowsFacts& out);
// x by both matrices in one launch: 129 to 1,024 rows.
std::optional<Bf16Rows1024Plan> PlanBf16Rows1024(const RowsFacts& x,
                                                 const MatrixFacts& w,
                                                 const RowsFacts& out,
                                                 const MatrixFacts& second,
                                                 const RowsFacts& second_out);
// Queries, rotated: 65 to 512 rows.
std::optional<Bf16Rows1024Plan> PlanBf16Rows1024Queries(const RowsFacts& x,
                                                        const MatrixFacts& w,
                                                        const RowsFacts& out);

}  // namespace baltoro::cuda
