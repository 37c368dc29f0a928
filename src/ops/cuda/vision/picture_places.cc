#include "ops/cuda/vision/picture_places.h"

#include <algorithm>
#include <vector>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/vision/picture_attention.h"

namespace baltoro::cuda {
namespace {

template <typename T>
const T* Up(const OpContext& ctx, const std::vector<T>& from) {
  return static_cast<const T*>(Upload(ctx, *ctx.scratch, from.data(), from.size() * sizeof(T)));
}

}  // namespace

PlacesOnDevice UploadPlaces(const OpContext& ctx,
                            std::span<const PictureGrid> grids,
                            int32_t merged_patches) {
  std::vector<PicturePlace> places;
  int32_t patch = 0, token = 0;
  for (const PictureGrid& grid : grids) {
    places.push_back({.first_patch = patch,
                      .first_token = token,
                      .frames = grid.frames,
                      .rows = grid.rows,
                      .columns = grid.columns});
    patch += static_cast<int32_t>(grid.patches());
    token += grid.rows * grid.columns / merged_patches;
  }
  return {.places = Up(ctx, places), .count = static_cast<int32_t>(places.size())};
}

TilesOnDevice UploadTiles(const OpContext& ctx, std::span<const PictureGrid> grids) {
  std::vector<AttentionTile> tiles;
  int32_t first = 0;
  for (const PictureGrid& grid : grids) {
    const auto patches = static_cast<int32_t>(grid.patches());
    const int32_t skipped = first % 8;
    for (int32_t at = 0; at < patches; at += kPictureQueries) {
      tiles.push_back({.first_patch = first + at,
                       .count = std::min(kPictureQueries, patches - at),
                       .first_key = first - skipped,
                       .keys = skipped + patches,
                       .skipped = skipped});
    }
    first += patches;
  }
  std::ranges::stable_sort(tiles, std::ranges::greater(), &AttentionTile::keys);
  return {.tiles = Up(ctx, tiles), .count = static_cast<int32_t>(tiles.size())};
}

}  // namespace baltoro::cuda
