#pragma once

// A small encoder of pictures for tests: no two of its widths are equal, and two or four ranks can
// share its heads.

#include "vision/vision_config.h"

namespace baltoro::test {

inline VisionConfig TinyEncoder() {
  VisionConfig config;
  config.hidden = 96;
  config.layers = 3;
  config.heads = 4;
  config.intermediate = 131;
  config.patch = 14;
  config.table_rows = config.table_columns = 8;
  config.frames_max = 4;
  config.text_hidden = 64;
  return config;
}

}  // namespace baltoro::test
