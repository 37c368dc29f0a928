#pragma once

// From a decoded picture to what the encoder reads.

#include <array>
#include <cstdint>
#include <span>

#include "media/picture_rules.h"
#include "media/rgb.h"

namespace baltoro {

// 128 bits of SHA-256. Equal exactly for pictures that give the same rules, grid and bytes, in
// every process: a name for caches. Clients cannot choose it.
using PictureHash = std::array<uint8_t, 16>;

struct PicturePatches {
  int frames = 1;
  int grid_height = 0;  // patches, of each frame
  int grid_width = 0;
  int tokens = 0;      // that it takes in a prompt, however many frames it has
  int64_t pixels = 0;  // of the picture, or all frames, before it was scaled
  // u8 [frames * grid_height * grid_width, 3, patch, patch]: patches frame by frame, row by row, of
  // each its channels, of each its rows. Not normalised.
  PixelBuffer bytes = {};
  size_t size = 0;  // of `bytes`
};

// Over the rules, the grid and the bytes. kResourceExhausted where there is no memory: a picture
// whose name could not be made must not be used.
Result<PictureHash> HashPatches(const PictureRules& rules, const PicturePatches& patches);

// Scales the picture down where the rules say so, pads it with black to the right and below, and
// cuts it. kResourceExhausted where there is no memory. Any thread.
Result<PicturePatches> CutPatches(Rgb picture, const PictureRules& rules);

// Pictures as the frames of one item, at least one. kInvalidArgument where they have not all the
// same grid, kResourceExhausted where there is no memory.
Result<PicturePatches> JoinFrames(std::span<const PicturePatches> frames);

}  // namespace baltoro
