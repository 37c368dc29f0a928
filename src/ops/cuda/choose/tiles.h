#pragma once

// tiles (tiles.cc, product_*.cu): up to 64 rows at a time by matrices in every coded form, and
// bf16; the wide form (tiles128.cu): tiles of 128 rows, for many rows.

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

inline constexpr int32_t kProductRowsMax = 64;    // rows of a tile
inline constexpr int32_t kWideProductRows = 128;  // of the wide form

namespace product {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int32_t kWideWeightRows = 128;  // strips of the wide form
inline constexpr int kRingStepBytes = 2048;      // of a warp

// Steps in flight through shared memory, by eights of rows of a tile; 0: loaded where used.
constexpr int RingOfBf16(int eights) {
  return eights == 1 ? 6 : eights == 2 ? 4 : 0;
}
constexpr int RingOfFp8Codes(int eights) {
  return eights <= 2 ? 6 : 4;
}

}  // namespace product

struct TilesQuestion {
  MatrixFacts w = {};
  int64_t rows = 0;
  // Rows sorted by matrix, in tiles of one each of `tile_rows`; 0: one matrix, all rows.
  int32_t tile_rows = 0;
  int64_t tiles_max = 0;
  bool wide = false;

  bool operator==(const TilesQuestion&) const = default;
};

struct TilesPlan {
  bool wide = false;
  // Of tiles: eights of rows of a tile (1, 2, 4 or 8); warps, as a power of two, and blocks that
  // share the columns of a strip.
  int32_t eights = 0;
  int32_t log_warps_k = 0, cluster = 1;
  LaunchShape launch = {};  // the dynamic bytes of the wide form are the kernel's own

  bool operator==(const TilesPlan&) const = default;
};

TilesPlan ChooseTiles(const TilesQuestion& question, const Card& card);

// Whether the kernels can be given this matrix: every coded form; kBf16 with k a multiple of 8.
bool TilesCan(const MatrixFacts& w);
// Whether the wide form can: bound by the matrix units, not by reading activations.
bool WideTilesCan(const MatrixFacts& w);

// Strips of 16 rows of weights, and steps of a row, as the kernels count them.
struct TilesMeasure {
  int64_t strips, steps;

  explicit TilesMeasure(const MatrixFacts& w);
};

}  // namespace baltoro::cuda
