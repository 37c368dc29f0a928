#pragma once

// --random-mm-bucket-config: which sizes pictures of a benchmark have, as upstream's Python writes
// it.

#include <string_view>
#include <vector>

#include "base/status.h"

namespace baltoro {

struct PictureBucket {
  int height = 0, width = 0;  // pixels
  double share = 0;           // of all pictures; those of a list have 1 together

  bool operator==(const PictureBucket&) const = default;
};

// Of "{(HEIGHT, WIDTH, 1): SHARE, ...}", the keys in quotation marks or not. Shares of 0 are left
// out, and the others made to have the sum 1. kInvalidArgument where it is of another form, or asks
// for videos (more than 1 frame) or audio (height 0).
Result<std::vector<PictureBucket>> ParsePictureBuckets(std::string_view text);

}  // namespace baltoro
