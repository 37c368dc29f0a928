#pragma once

// How a model wants its pictures: preprocessor_config.json, and the sizes that follow from it.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

// The defaults are those of Kimi K2.5.
struct PictureRules {
  int patch = 14;               // pixels, either side of a patch
  int merge = 2;                // patches, either side of the square that becomes one token
  int64_t patches_max = 16384;  // of a picture, before its sides are rounded up
  int side_patches_max = 512;
  // Of a frame of a video, likewise; and frames that are one item, which has the tokens of one.
  int64_t frame_patches_max = 4096;
  int item_frames = 4;
  // A channel of a byte x becomes (x / 255 - mean) / std. Bytes travel; the encoder does that.
  std::array<double, 3> mean = {0.5, 0.5, 0.5};
  std::array<double, 3> std = {0.5, 0.5, 0.5};

  // By which a frame is scaled as a picture is.
  PictureRules OfFrames() const;

  bool operator==(const PictureRules&) const = default;
};

// Reads media_proc_cfg out of the text of that file. Errors begin with `file` and name the key.
// A key that is missing keeps its default, but for patch_size and in_patch_limit: a file without
// them is of another model. A file without a limit for frames has the model's, or that of pictures
// where this is less.
Result<PictureRules> ParsePictureRules(std::string_view json, const std::string& file);
// preprocessor_config.json in `model_dir`. kNotFound where the model has none.
Result<PictureRules> ReadPictureRules(const std::string& model_dir);

// Where a picture of some size ends up: scaled (never up), then padded to the right and below.
struct PictureFit {
  int width = 0;        // scaled, pixels
  int height = 0;       // likewise
  int grid_width = 0;   // padded, patches
  int grid_height = 0;  // likewise

  int64_t patches() const { return int64_t{grid_width} * grid_height; }
  int64_t tokens(const PictureRules& rules) const {
    return patches() / (int64_t{rules.merge} * rules.merge);
  }
};
// Width and height at least 1.
PictureFit FitPicture(int width, int height, const PictureRules& rules);
// No picture gets more patches than this from FitPicture. (The limit of the rules holds for sides
// that are cut down to whole patches, each of which may be nearly a patch longer; then they are
// padded.)
int64_t PatchesMax(const PictureRules& rules);

}  // namespace baltoro
