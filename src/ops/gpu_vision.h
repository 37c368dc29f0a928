#pragma once

// What a picture encoder takes on a GPU: its scratch, and the widths that its kernels are written
// for. The CUDA module computes with these numbers, and a plan for a GPU that is not here reckons
// with them.

#include <algorithm>
#include <cstdint>
#include <string>

#include "ops/vision.h"

namespace baltoro::gpu_vision {

inline constexpr int32_t kHeadMax = 72;     // width of a head; a multiple of 8
inline constexpr int64_t kWidthMax = 2048;  // of rows that are normalised; multiples of 4
inline constexpr int64_t kPlaceBytes = 20;  // of a picture, in the lists that kernels read
inline constexpr int64_t kTileBytes = 20;   // of a tile of queries
inline constexpr int64_t kAlignment = 256;  // of an arena
inline constexpr int64_t kRowTile = 128;    // of a product
inline constexpr int64_t kRowStep =
    8;  // elements: rows that the copy engine reads are 16-byte aligned

inline int64_t RoundUp(int64_t value, int64_t step) {
  return (value + step - 1) / step * step;
}

inline int64_t RowsBytes(int64_t rows, int64_t width) {
  return RoundUp(rows * RoundUp(width, kRowStep) * 2, kAlignment);
}

inline int64_t AlignedBytes(int64_t n, int64_t k) {
  return k % kRowStep == 0 ? 0 : RowsBytes(n, k);
}

inline int64_t PlacesBytes(int64_t patches) {
  return RoundUp(patches * int64_t{sizeof(uint32_t)}, kAlignment);
}

// Queries, keys and values of a block, [N, 2 H] and [H, N]; later what is between the two products
// of the MLP, for as many rows at once as have room there.
inline int64_t WideBytes(int64_t patches, int64_t hidden, int64_t intermediate) {
  return std::max(RowsBytes(patches, 2 * hidden) + RowsBytes(hidden, patches),
                  RowsBytes(std::min(patches, kRowTile), intermediate));
}
inline int64_t MiddleRows(int64_t patches, int64_t hidden, int64_t intermediate) {
  const int64_t fit =
      WideBytes(patches, hidden, intermediate) / (RoundUp(intermediate, kRowStep) * 2);
  return std::min(patches, std::max(fit / kRowTile, int64_t{1}) * kRowTile);
}

inline int64_t ScratchBytes(const VisionWidths& w, int64_t patches, int) {
  // Of a batch of pictures of one patch, the most that there can be.
  const int64_t places = RoundUp(patches * kPlaceBytes, kAlignment);
  const int64_t tiles = RoundUp(patches * kTileBytes, kAlignment);
  const int64_t embed = AlignedBytes(w.hidden, w.pixels) + RowsBytes(patches, w.pixels) + places;
  const int64_t block = RowsBytes(patches, w.hidden) +
                        WideBytes(patches, w.hidden, w.intermediate) + PlacesBytes(patches) +
                        places + tiles + AlignedBytes(3 * w.hidden, w.hidden) +
                        AlignedBytes(w.hidden, w.hidden) + AlignedBytes(w.intermediate, w.hidden) +
                        AlignedBytes(w.hidden, w.intermediate);
  const int64_t tokens = (patches * w.hidden + w.merged - 1) / w.merged;
  const int64_t project = RowsBytes(tokens, w.merged) + RowsBytes(tokens, w.projector) + places +
                          AlignedBytes(w.projector, w.merged) +
                          AlignedBytes(w.text_hidden, w.projector);
  return std::max({embed, block, project});
}

inline std::string Refuses(const VisionWidths& w) {
  const int64_t head = w.heads > 0 ? w.hidden / w.heads : 0;
  if (head % 8 != 0 || head > kHeadMax) {
    return "heads of " + std::to_string(head) + " elements; a GPU takes multiples of 8 up to " +
           std::to_string(kHeadMax);
  }
  if (w.hidden > kWidthMax) {
    return "a hidden size of " + std::to_string(w.hidden) + "; a GPU takes " +
           std::to_string(kWidthMax) + " at most";
  }
  return {};
}

// Those of a GPU as far as a plan asks: the operations themselves are null.
inline const VisionOps& Sizes() {
  static const VisionOps kSizes = {.scratch_bytes = ScratchBytes, .refuses = Refuses};
  return kSizes;
}

}  // namespace baltoro::gpu_vision
