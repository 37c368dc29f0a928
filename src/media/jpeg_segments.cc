#include "media/jpeg_segments.h"

#include "media/picture_format.h"

namespace baltoro {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view kFormat = "JPEG";
constexpr uint32_t kEnd = 0xd9;
constexpr uint32_t kScan = 0xda;
constexpr uint32_t kApp1 = 0xe1;
constexpr uint32_t kTem = 0x01;

// Restart markers stand inside of coded data.
bool IsRestart(uint32_t marker) {
  return marker >= 0xd0 && marker <= 0xd7;
}

bool IsFrame(uint32_t marker) {
  // Of C0 to CF, three are tables and an extension.
  return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

// The marker at or after `at`, which is left behind it; 0 where the file ends. What stands between
// is coded data, or bytes too many, which decoders pass over too.
uint32_t NextMarker(std::string_view bytes, size_t& at) {
  for (;;) {
    at = bytes.find('\xff', at);
    if (at == std::string_view::npos) return 0;
    at = bytes.find_first_not_of('\xff', at);  // any number of FF may stand before a marker
    if (at == std::string_view::npos) return 0;
    const uint32_t marker = Byte(bytes, at++);
    if (marker != 0) return marker;  // FF 00 is a coded FF
  }
}

}  // namespace

Result<JpegSegments> ReadJpegSegments(std::string_view bytes) {
  JpegSegments out;
  size_t at = 2;
  for (;;) {
    const uint32_t marker = NextMarker(bytes, at);
    if (marker == 0) return ShortPicture(kFormat);
    if (marker == kEnd) break;
    if (IsRestart(marker) || marker == kTem) continue;
    if (marker == 0xd8) return BrokenPicture(kFormat, "it begins again before it ends");
    if (bytes.size() - at < 2) return ShortPicture(kFormat);
    const size_t length = Big16(bytes, at);
    if (length < 2) return BrokenPicture(kFormat, "a segment of it has an impossible length");
    if (bytes.size() - at < length) return ShortPicture(kFormat);
    const std::string_view body = bytes.substr(at + 2, length - 2);
    at += length;
    if (marker == kScan) {
      if (out.frame_marker == 0) return BrokenPicture(kFormat, "its data come before its size");
      ++out.scans;
    } else if (marker == kApp1 && out.exif.empty() && body.starts_with("Exif\0"sv)) {
      out.exif = body;
    } else if (IsFrame(marker)) {
      if (out.frame_marker != 0) return BrokenPicture(kFormat, "it states its size twice");
      if (body.size() < 6) return BrokenPicture(kFormat, "it does not state its size");
      out.frame_marker = marker;
      out.sample_bits = Byte(body, 0);
      out.height = Big16(body, 1);
      out.width = Big16(body, 3);
      out.components = Byte(body, 5);
    }
  }
  if (out.frame_marker == 0) return BrokenPicture(kFormat, "it does not state its size");
  if (out.scans == 0) return BrokenPicture(kFormat, "it has no data");
  return out;
}

}  // namespace baltoro
