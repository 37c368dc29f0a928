#include "media/png_chunks.h"

#include <algorithm>
#include <cstring>

#include "media/picture_format.h"

namespace baltoro {
namespace {

constexpr std::string_view kFormat = "PNG";
constexpr size_t kSignature = 8;
constexpr size_t kAround = 12;  // length, type and checksum of a chunk

std::string_view TypeAt(std::string_view bytes, size_t chunk) {
  return bytes.substr(chunk + 4, 4);
}

// Critical chunks have a capital letter first.
bool IsCritical(std::string_view type) {
  return type[0] >= 'A' && type[0] <= 'Z';
}

}  // namespace

Result<PngChunks> ReadPngChunks(std::string_view bytes) {
  PngChunks out;
  for (size_t at = kSignature;;) {
    const size_t left = bytes.size() - at;
    if (left < kAround) return ShortPicture(kFormat);
    const uint32_t length = Big32(bytes, at);
    const std::string_view type = TypeAt(bytes, at);
    if (!std::all_of(type.begin(), type.end(),
                     [](char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); })) {
      return BrokenPicture(kFormat, "a chunk of it has no name");
    }
    if (length > left - kAround) return ShortPicture(kFormat);
    if ((at == kSignature) != (type == "IHDR") || (type == "IHDR" && length != 13)) {
      return BrokenPicture(kFormat, "it does not begin with its size");
    }
    if (type == "IHDR") {
      out.width = Big32(bytes, at + 8);
      out.height = Big32(bytes, at + 12);
    } else if (type == "eXIf" && out.exif.empty()) {
      out.exif = bytes.substr(at + 8, length);
    } else if (type == "IEND") {
      return out;
    }
    at += kAround + length;
  }
}

bool PngSource::Read(uint8_t* out, size_t count) {
  while (count > 0) {
    while (piece_left_ == 0) {
      if (bytes_.size() - at_ < kAround) return false;
      const size_t size = kAround + Big32(bytes_, at_);
      const std::string_view type = TypeAt(bytes_, at_);
      if (IsCritical(type) || type == "tRNS") {
        piece_left_ = size;
      } else {
        at_ += size;
      }
    }
    const size_t part = std::min(count, piece_left_);
    if (part > bytes_.size() - at_) return false;
    std::memcpy(out, bytes_.data() + at_, part);
    out += part;
    at_ += part;
    count -= part;
    piece_left_ -= part;
  }
  return true;
}

}  // namespace baltoro
