#pragma once

// What the fuzz targets of the picture formats share.

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "base/check.h"
#include "media/picture_format.h"

namespace baltoro {

// Small, so that an input costs little however large a picture it claims to be.
inline constexpr PictureLimits kFuzzLimits = {.bytes_max = 1 << 20,
                                              .pixels_max = 1 << 18,
                                              .side_max = 4096,
                                              .aspect_max = 200,
                                              .jpeg_scans_max = 10};

// The input as a file of the format: its signature stands where the first bytes were.
inline std::string AsFile(const uint8_t* data, size_t size, std::string_view signature) {
  std::string file(reinterpret_cast<const char*>(data), size);
  if (file.size() < signature.size()) file.resize(signature.size());
  std::memcpy(file.data(), signature.data(), signature.size());
  return file;
}

// What is taken keeps to the limits, all of its pixels may be read, and the same bytes give the
// same picture whatever memory held before; what is not taken is refused in our own words.
inline void CheckPicture(const std::string& file) {
  const Result<Rgb> picture = DecodePicture(file, kFuzzLimits);
  if (!picture.ok()) {
    const std::string message = picture.status().message();
    BT_CHECK(message.starts_with("the "));
    for (const char* word : {"0x", "/", "lib", "%", "\n"}) {
      BT_CHECK(message.find(word) == std::string::npos);
    }
    return;
  }
  const Rgb& rgb = picture.value();
  BT_CHECK(rgb.width >= 1 && rgb.height >= 1);
  BT_CHECK(int64_t{rgb.width} * rgb.height <= kFuzzLimits.pixels_max);
  const Result<Rgb> again = DecodePicture(file, kFuzzLimits);
  BT_CHECK(again.ok() && again.value().width == rgb.width);
  BT_CHECK(std::memcmp(again.value().row(0), rgb.row(0), rgb.size()) == 0);
}

}  // namespace baltoro
