#pragma once

// The chunks of a PNG file.

#include <cstdint>
#include <string_view>

#include "base/status.h"

namespace baltoro {

struct PngChunks {
  uint32_t width = 0;
  uint32_t height = 0;
  std::string_view exif;  // of the first eXIf chunk; empty where there is none
};

// Walks through the whole file up to its last chunk. `bytes` begins with the signature.
Result<PngChunks> ReadPngChunks(std::string_view bytes);

// The file without the chunks that are of no use, in pieces: what libpng gets to see, so that
// nothing in the others (profiles, compressed text) costs anything. Only after ReadPngChunks has
// accepted the same bytes.
class PngSource {
 public:
  explicit PngSource(std::string_view bytes) : bytes_(bytes) {}

  // Copies the next `count` bytes; false where there are not so many.
  bool Read(uint8_t* out, size_t count);

 private:
  std::string_view bytes_;
  size_t at_ = 0;
  size_t piece_left_ = 8;  // the signature
};

}  // namespace baltoro
