#pragma once

// What the markers of a JPEG file say, before any of it is decoded.

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace baltoro {

struct JpegSegments {
  uint32_t width = 0;
  uint32_t height = 0;
  uint32_t components = 0;
  uint32_t sample_bits = 0;
  uint32_t frame_marker = 0;  // the second byte of the frame's marker: the way it is coded
  int scans = 0;
  std::string_view exif;  // of the first APP1 segment that has some
};

// Walks through the whole file up to its end marker, the coded data included, so that a file that
// is cut short or has thousands of scans is known as such at once. `bytes` begins with FF D8.
Result<JpegSegments> ReadJpegSegments(std::string_view bytes);

}  // namespace baltoro
