#pragma once

// The inner loops of packing with AVX2, which every host of a Hopper GPU has: loading is to be as
// fast as PCIe, with packing on the way. Beside them are plain loops, for other processors.

#include <cstdint>

namespace baltoro::cuda {

bool HasPackVectors();

// Interleaves the nibbles of `tiles` * 16 source words of one row and stores them to the tiles of
// int4_layout.h, of tile row g + 8 * high. Bytes of other rows are not touched.
void PackInt4TilesAvx2(
    char* tiles_of_row, const uint32_t* words, int64_t tiles, int64_t g, int64_t high);

// 128 e4m3 codes with the middle bytes of each word swapped; whether one of them is NaN.
bool PackFp8StepAvx2(char* to, const uint8_t* from);

}  // namespace baltoro::cuda
