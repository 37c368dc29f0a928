#include "media/decode_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "media/orientation.h"
#include "media/picture_format.h"

namespace baltoro {

using namespace std::string_view_literals;

Status BrokenPicture(std::string_view format, std::string_view what) {
  return InvalidArgument(fmt::format("the {} picture is broken: {}", format, what));
}

Status ShortPicture(std::string_view format) {
  return InvalidArgument(
      fmt::format("the {} picture is cut short: its data end before the picture does", format));
}

Status CheckSize(std::string_view format,
                 uint64_t width,
                 uint64_t height,
                 const PictureLimits& limits) {
  const auto refuse = [&](std::string_view limit) {
    return InvalidArgument(fmt::format("the {} picture has {} x {} pixels; {}: make it smaller",
                                       format, width, height, limit));
  };
  if (width == 0 || height == 0) return BrokenPicture(format, "it says that it has no pixels");
  const uint64_t longer = std::max(width, height);
  const uint64_t shorter = std::min(width, height);
  if (longer > static_cast<uint64_t>(limits.side_max)) {
    return refuse(fmt::format("a side may have {}", limits.side_max));
  }
  if (longer * shorter > static_cast<uint64_t>(limits.pixels_max)) {
    return refuse(fmt::format("{} are the most", limits.pixels_max));
  }
  if (longer > shorter * static_cast<uint64_t>(limits.aspect_max)) {
    return InvalidArgument(
        fmt::format("the {} picture has {} x {} pixels; its longer side may be {} times the "
                    "shorter one: cut it",
                    format, width, height, limits.aspect_max));
  }
  return {};
}

void CompositeOnWhite(const uint8_t* rgba, size_t pixels, uint8_t* rgb) {
  for (size_t i = 0; i < pixels; ++i) {
    const unsigned alpha = rgba[4 * i + 3];
    for (size_t c = 0; c < 3; ++c) {
      // Over 255, rounded, in whole numbers.
      const unsigned sum = 255 * (255 - alpha) + rgba[4 * i + c] * alpha + 128;
      rgb[3 * i + c] = static_cast<uint8_t>(((sum >> 8) + sum) >> 8);
    }
  }
}

namespace {

Result<DecodedPicture> Decode(std::string_view bytes, const PictureLimits& limits) {
  const std::string_view type = PictureType(bytes);
  if (type == "image/jpeg") return DecodeJpeg(bytes, limits);
  if (type == "image/png") return DecodePng(bytes, limits);
  if (type == "image/gif") return DecodeGif(bytes, limits);
  if (type == "image/webp") return DecodeWebp(bytes, limits);
  return InvalidArgument("the picture is of no known format: send JPEG, PNG, WebP or GIF");
}

}  // namespace

std::string_view PictureType(std::string_view bytes) {
  if (bytes.starts_with("\xff\xd8\xff"sv)) return "image/jpeg";
  if (bytes.starts_with("\x89PNG\r\n\x1a\n"sv)) return "image/png";
  if (bytes.starts_with("GIF87a"sv) || bytes.starts_with("GIF89a"sv)) return "image/gif";
  if (bytes.size() >= 12 && bytes.starts_with("RIFF"sv) && bytes.substr(8, 4) == "WEBP"sv) {
    return "image/webp";
  }
  return "";
}

Result<Rgb> DecodePicture(std::string_view bytes, const PictureLimits& limits) {
  if (bytes.empty()) return InvalidArgument("the picture is empty: it has no bytes");
  if (bytes.size() > limits.bytes_max) {
    return InvalidArgument(fmt::format(
        "the picture has {} bytes; {} are the most: make it smaller or compress it more",
        bytes.size(), limits.bytes_max));
  }
  BT_ASSIGN_OR_RETURN(DecodedPicture decoded, Decode(bytes, limits));
  return Orient(std::move(decoded.rgb), decoded.orientation);
}

}  // namespace baltoro
