#pragma once

// A picture in memory: the form between decoding and cutting.

#include <cstdint>
#include <memory>
#include <new>
#include <utility>

#include "base/status.h"

namespace baltoro {

inline Status NoMemoryForPicture() {
  return Status(Code::kResourceExhausted, "too little memory for the picture; try again later");
}

// u8 [height, width, channels], rows close together, channels in the order red, green, blue(,
// alpha). The bytes are not set when it is made: what is never written costs no memory.
struct PixelBuffer {
  std::unique_ptr<uint8_t[]> bytes;

  static Result<PixelBuffer> Make(size_t size) {
    std::unique_ptr<uint8_t[]> bytes(new (std::nothrow) uint8_t[size]);
    if (bytes == nullptr) {
      return NoMemoryForPicture();
    }
    return PixelBuffer{std::move(bytes)};
  }
};

struct Rgb {
  int width = 0;   // pixels, at least 1
  int height = 0;  // likewise
  PixelBuffer pixels;

  static Result<Rgb> Make(int width, int height) {
    BT_ASSIGN_OR_RETURN(PixelBuffer pixels,
                        PixelBuffer::Make(static_cast<size_t>(width) * height * 3));
    return Rgb{width, height, std::move(pixels)};
  }

  size_t size() const { return static_cast<size_t>(width) * height * 3; }
  uint8_t* row(int y) { return pixels.bytes.get() + static_cast<size_t>(y) * width * 3; }
  const uint8_t* row(int y) const {
    return pixels.bytes.get() + static_cast<size_t>(y) * width * 3;
  }
};

}  // namespace baltoro
