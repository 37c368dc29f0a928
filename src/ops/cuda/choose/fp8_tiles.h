#pragma once

// Products of e4m3 rows with kFp8Block matrices in tiles of 128 rows, of one matrix or of many:
// fp8_tiles (fp8_tiles.cu), for tens of rows a matrix, and fp8_pairs (fp8_pairs.cu), whose blocks
// come in pairs that share weights, for hundreds.

#include "ops/cuda/choose/card.h"
#include "ops/cuda/choose/facts.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {

struct Fp8TilesQuestion {
  MatrixFacts w = {};
  int64_t rows = 0;       // of all tiles at most
  bool grouped = false;   // rows are sorted by matrix, in tiles of one each; else one matrix
  int64_t tiles_max = 0;  // grouped
  bool gated = false;     // gate and up, as Fp8Product has it
  bool gather = false;    // rows of x lie anywhere
  bool whole_x = true;    // rows of x and their scales are aligned and without gaps
  RowsFacts out = {};
  bool has_scratch = false;  // for sums of parts of the columns

  bool operator==(const Fp8TilesQuestion&) const = default;
};

struct Fp8TilesPlan {
  bool pairs = false;  // fp8_pairs; else fp8_tiles
  // fp8_tiles: rows of a tile; blocks that share the columns, whose results another kernel adds up;
  // blocks in pairs that have two tiles of the same matrix.
  int32_t tile_rows = 128, parts = 1;
  bool pair = false;
  // fp8_pairs: rows of weights of a piece, of a group of them under way; two pairs of blocks have
  // half of the columns each; rows are whole eights of steps.
  int32_t piece = 0, group = 0;
  bool halves = false, eights = false;
  LaunchShape launch = {};

  bool operator==(const Fp8TilesPlan&) const = default;
};

Fp8TilesPlan ChooseFp8Tiles(const Fp8TilesQuestion& question, const Card& card);

// Whether so many rows by one matrix should go this way at all, rather than by `tiles`.
bool Fp8TilesSuit(int64_t rows, int64_t n, const Card& card);
// Whether so many rows of one matrix give two thirds of the multiprocessors work in fp8_pairs.
bool Fp8PairsFill(int64_t rows, const MatrixFacts& w, const Card& card);

}  // namespace baltoro::cuda
