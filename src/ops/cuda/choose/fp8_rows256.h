#pragma once

// fp8_rows256 (fp8_rows256.cc): 9 to 256 rows by kFp8Block matrices whose input is rounded to e4m3,
// whose columns a cluster of blocks shares. How a product is cut up, and a block's shared memory.

#include <algorithm>
#include <optional>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

inline constexpr int kFp8Rows256TileRows = 64;  // of a tile
inline constexpr int kFp8Rows256StepsMax = 16;  // of a block; a step is 128 bytes of a row
inline constexpr int kFp8Rows256PartsMax = 8;
inline constexpr int kMiddleStages = 5;
inline constexpr int kMiddleBf16Columns = 64;  // of a step

struct Fp8Rows256Plan {
  int32_t strip_rows = 0, parts = 0;  // rows of weights of a block; blocks that share the columns
  int32_t tiles = 0;                  // of kFp8Rows256TileRows rows
  int32_t slice = 0;                  // rows of a tile that a block adds up
  int32_t box_rows = 0;               // rows of x that are fetched for a tile
  LaunchShape launch = {};

  bool operator==(const Fp8Rows256Plan&) const = default;
};

// A block's shared memory, in bytes.
constexpr int32_t Fp8Rows256SharedBytes(int32_t strip_rows, int32_t parts, int32_t slice) {
  const int32_t sums = (2 * parts - 1) * slice * (strip_rows + 8) * 4;
  return 1024 + kMiddleStages * (kFp8Rows256TileRows * 128 + strip_rows * 128) + sums;
}

// x, as codes, by w into out; none where the kernel does not take them, or its blocks would not all
// run at once.
std::optional<Fp8Rows256Plan> PlanFp8Rows256(const MatrixFacts& w,
                                             const RowsFacts& out,
                                             const Card& card);
// Beside the router's product, of x as it is.
std::optional<Fp8Rows256Plan> PlanFp8Rows256Router(const MatrixFacts& w,
                                                   const RowsFacts& out,
                                                   const MatrixFacts& router,
                                                   const RowsFacts& logits,
                                                   const RowsFacts& x,
                                                   const Card& card);
// Queries, rotated.
std::optional<Fp8Rows256Plan> PlanFp8Rows256Queries(const MatrixFacts& w,
                                                    const RowsFacts& out,
                                                    const Card& card);

}  // namespace baltoro::cuda
