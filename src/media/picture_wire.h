#pragma once

// What goes between a process and the one that decodes pictures for it: both are the same program,
// so these are bytes of memory. A job is a PictureJob and the file; its answer is a PictureAnswer
// and either the sentence of a refusal or the patches. Before the first job the worker sends a
// PictureAnswer whose sentence, where there is one, says what it could not give up.

#include <cstdint>

#include "media/decode_picture.h"
#include "media/picture_rules.h"

namespace baltoro {

struct PictureJob {
  uint64_t bytes = 0;  // of the file
  PictureRules rules = {};
  PictureLimits limits = {};
};

struct PictureAnswer {
  Code code = Code::kOk;
  uint32_t sentence_bytes = 0;
  int32_t grid_height = 0;
  int32_t grid_width = 0;
  int64_t pixels = 0;  // before it was scaled
  uint64_t patch_bytes = 0;
};

inline constexpr uint32_t kSentenceBytesMax = 1024;

}  // namespace baltoro
