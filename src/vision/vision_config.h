#pragma once

// The shape of a picture encoder of the family (MoonViT-3D and projector, model-family §8), read
// from the config.json of a kimi_k25. A plain struct, so that tests and benchmarks can also build
// one in code; Validate() is run by everything that takes one.

#include <algorithm>
#include <cstdint>
#include <string>

#include "base/json.h"
#include "base/status.h"
#include "media/picture_rules.h"
#include "ops/vision.h"

namespace baltoro {

struct VisionConfig {
  int64_t hidden = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int64_t intermediate = 0;
  int32_t patch = 0;  // pixels along a side of a patch
  // The learned table of positions, and how many frames one item may have.
  int32_t table_rows = 0, table_columns = 0, frames_max = 0;
  int32_t merge_rows = 2, merge_columns = 2;  // patches that become one token
  int64_t text_hidden = 0;                    // of the text model: width of the rows that come out
  // The vendor's code has the first two as constants.
  double norm_eps = 1e-5, rope_theta = 10000;
  double projector_eps = 1e-5;
  // How pictures are made ready. Of a byte the encoder sees (byte / 255 - mean) / std.
  PictureRules rules = {};

  // The most patches along a side, for which angles of rotary positions are kept, and of a picture
  // or an item of frames, whose sides may have been rounded up to what merges.
  int32_t side_max() const { return rules.side_patches_max; }
  int64_t patches_max() const {
    const int64_t frames = std::min(rules.item_frames, frames_max);
    return std::max(PatchesMax(rules), frames * PatchesMax(rules.OfFrames()));
  }
  int64_t pixels() const { return int64_t{3} * patch * patch; }  // bytes of a patch
  int64_t head_size() const { return hidden / heads; }
  int64_t merged() const { return int64_t{merge_rows} * merge_columns * hidden; }
  int64_t tokens(const PictureGrid& grid) const {
    return int64_t{grid.rows / merge_rows} * (grid.columns / merge_columns);
  }
  // Of the batches of up to so many patches.
  int64_t tokens_max(int64_t patches) const {
    return patches / (int64_t{merge_rows} * merge_columns);
  }
  VisionWidths widths() const;

  // From the whole config.json. Every refusal names the key, what it said and what is expected.
  static Result<VisionConfig> Parse(const Json& config);
  // config.json and, where it exists, preprocessor_config.json.
  static Result<VisionConfig> Read(const std::string& dir);
  // Of Kimi K2.5 and K2.6, which are one.
  static VisionConfig Released();
  Status Validate() const;

 private:
  Status CheckRules(const std::string& dir) const;
};

}  // namespace baltoro
