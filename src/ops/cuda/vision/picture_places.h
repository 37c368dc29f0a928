#pragma once

// Where the pictures of a batch lie among its patches, as kernels read it.

#include <cstdint>
#include <span>

#include "ops/context.h"
#include "ops/vision.h"

namespace baltoro::cuda {

struct PicturePlace {
  int32_t first_patch, first_token;  // of the batch
  int32_t frames, rows, columns;     // of patches
};

// A tile of queries that one block takes: patches [first_patch, first_patch + count) of a picture.
// Keys are read from patch first_key on, a multiple of 8 as the copy engine wants it: the first
// `skipped` of them are of the picture before, and those up to `keys` of this one.
struct AttentionTile {
  int32_t first_patch, count;
  int32_t first_key, keys;
  int32_t skipped;
};

// In device memory, of the context's scratch.
struct PlacesOnDevice {
  const PicturePlace* places = nullptr;
  int32_t count = 0;
};
PlacesOnDevice UploadPlaces(const OpContext& ctx,
                            std::span<const PictureGrid> grids,
                            int32_t merged_patches);

// Those of the largest pictures first, so that small ones fill the gaps at the end.
struct TilesOnDevice {
  const AttentionTile* tiles = nullptr;
  int32_t count = 0;
};
TilesOnDevice UploadTiles(const OpContext& ctx, std::span<const PictureGrid> grids);

}  // namespace baltoro::cuda
