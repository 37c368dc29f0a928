#pragma once

// What the decoders of this room share: one function a format, and the words of their refusals.
// Each takes bytes that begin with its format's signature.

#include <string>
#include <string_view>

#include "media/decode_picture.h"

namespace baltoro {

// A decoded picture before it is turned the way that its file says.
struct DecodedPicture {
  Rgb rgb;
  int orientation = 1;  // of Exif: 1 to 8
};

Result<DecodedPicture> DecodeJpeg(std::string_view bytes, const PictureLimits& limits);
Result<DecodedPicture> DecodePng(std::string_view bytes, const PictureLimits& limits);
Result<DecodedPicture> DecodeWebp(std::string_view bytes, const PictureLimits& limits);
Result<DecodedPicture> DecodeGif(std::string_view bytes, const PictureLimits& limits);

// "the PNG picture is broken: WHAT".
Status BrokenPicture(std::string_view format, std::string_view what);
// The file ends before the picture does.
Status ShortPicture(std::string_view format);
// Whether a picture of this size is taken.
Status CheckSize(std::string_view format,
                 uint64_t width,
                 uint64_t height,
                 const PictureLimits& limits);

// rgba [pixels, 4] on white, to rgb [pixels, 3], rounded as Pillow's paste does.
void CompositeOnWhite(const uint8_t* rgba, size_t pixels, uint8_t* rgb);

// Numbers in a file; `at` and what is read must be inside of it.
inline uint32_t Byte(std::string_view bytes, size_t at) {
  return static_cast<unsigned char>(bytes[at]);
}
inline uint32_t Little16(std::string_view bytes, size_t at) {
  return Byte(bytes, at) | Byte(bytes, at + 1) << 8;
}
inline uint32_t Little24(std::string_view bytes, size_t at) {
  return Little16(bytes, at) | Byte(bytes, at + 2) << 16;
}
inline uint32_t Little32(std::string_view bytes, size_t at) {
  return Little16(bytes, at) | Little16(bytes, at + 2) << 16;
}
inline uint32_t Big16(std::string_view bytes, size_t at) {
  return Byte(bytes, at) << 8 | Byte(bytes, at + 1);
}
inline uint32_t Big32(std::string_view bytes, size_t at) {
  return Big16(bytes, at) << 16 | Big16(bytes, at + 2);
}
inline const uint8_t* Unsigned(std::string_view bytes) {
  return reinterpret_cast<const uint8_t*>(bytes.data());
}

}  // namespace baltoro
