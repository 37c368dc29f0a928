#pragma once

// Rows sorted by the matrix that they are multiplied with, as products of many matrices take them.

#include <cstdint>

namespace baltoro::cuda {

// Consecutive rows of the sorted order that one expert takes in one pass over its weights.
struct MoeTile {
  int32_t slot;
  int32_t begin;  // first row in the sorted order
  int32_t count;
  int32_t unused;
};

// Where a block's share of the tiles begins: `part` 65536ths into tile `tile`.
struct MoeStart {
  int32_t tile;
  int32_t part;
};

}  // namespace baltoro::cuda
