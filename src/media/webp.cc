#include <webp/decode.h>

#include <algorithm>

#include "media/orientation.h"
#include "media/picture_format.h"

namespace baltoro {
namespace {

constexpr std::string_view kFormat = "WebP";
constexpr size_t kChunkHeader = 8;
constexpr size_t kFrameHeader = 16;

struct Chunks {
  std::string_view file;        // without what stands behind its stated end
  std::string_view frame = {};  // the first ANMF chunk: an animation's first frame
  std::string_view exif = {};
  uint32_t canvas_width = 0;  // 0 where the file is of the simple kind
  uint32_t canvas_height = 0;
};

// Walks through the file's chunks. `bytes` has the first 12 bytes of a WebP file.
Result<Chunks> ReadChunks(std::string_view bytes) {
  const uint64_t size = uint64_t{Little32(bytes, 4)} + kChunkHeader;
  if (size > bytes.size()) return ShortPicture(kFormat);
  if (size < 12) return BrokenPicture(kFormat, "it states an impossible length");
  Chunks out{.file = bytes.substr(0, size)};
  for (size_t at = 12; out.file.size() - at >= kChunkHeader;) {
    const std::string_view type = out.file.substr(at, 4);
    const size_t length = Little32(out.file, at + 4);
    at += kChunkHeader;
    if (length > out.file.size() - at) return ShortPicture(kFormat);
    const std::string_view body = out.file.substr(at, length);
    at = std::min(at + length + (length & 1), out.file.size());
    if (type == "VP8X" && length >= 10) {
      out.canvas_width = Little24(body, 4) + 1;
      out.canvas_height = Little24(body, 7) + 1;
    } else if (type == "ANMF" && out.frame.empty()) {
      out.frame = body;
    } else if (type == "EXIF" && out.exif.empty()) {
      out.exif = body;
    }
  }
  return out;
}

Status Failed(VP8StatusCode code) {
  switch (code) {
    case VP8_STATUS_OUT_OF_MEMORY:
      return Status(Code::kResourceExhausted, "too little memory for the picture; try again later");
    case VP8_STATUS_NOT_ENOUGH_DATA:
    case VP8_STATUS_SUSPENDED:
      return ShortPicture(kFormat);
    default:
      return BrokenPicture(kFormat, "its data do not decode");
  }
}

// Decodes a file, or the data of a frame, of this size. `mode`: MODE_RGB or MODE_RGBA.
Status DecodeInto(std::string_view data, WEBP_CSP_MODE mode, uint8_t* out, int width, int height) {
  WebPDecoderConfig config;
  if (WebPInitDecoderConfig(&config) == 0) return Failed(VP8_STATUS_INVALID_PARAM);
  config.output.colorspace = mode;
  config.output.is_external_memory = 1;
  config.output.u.RGBA.rgba = out;
  config.output.u.RGBA.stride = width * (mode == MODE_RGBA ? 4 : 3);
  config.output.u.RGBA.size = static_cast<size_t>(config.output.u.RGBA.stride) * height;
  const VP8StatusCode code = WebPDecode(Unsigned(data), data.size(), &config);
  WebPFreeDecBuffer(&config.output);
  return code == VP8_STATUS_OK ? Status() : Failed(code);
}

// The first frame alone, on a canvas that is transparent around it.
Result<Rgb> DecodeFrame(const Chunks& chunks, const PictureLimits& limits) {
  BT_RETURN_IF_ERROR(CheckSize(kFormat, chunks.canvas_width, chunks.canvas_height, limits));
  if (chunks.frame.size() < kFrameHeader) return ShortPicture(kFormat);
  const uint32_t left = 2 * Little24(chunks.frame, 0);
  const uint32_t top = 2 * Little24(chunks.frame, 3);
  const uint32_t width = Little24(chunks.frame, 6) + 1;
  const uint32_t height = Little24(chunks.frame, 9) + 1;
  if (left + width > chunks.canvas_width || top + height > chunks.canvas_height) {
    return BrokenPicture(kFormat, "its first frame is larger than the whole");
  }
  const std::string_view data = chunks.frame.substr(kFrameHeader);
  WebPBitstreamFeatures features;
  const VP8StatusCode code = WebPGetFeatures(Unsigned(data), data.size(), &features);
  if (code != VP8_STATUS_OK) return Failed(code);
  if (static_cast<uint32_t>(features.width) != width ||
      static_cast<uint32_t>(features.height) != height) {
    return BrokenPicture(kFormat, "its first frame states two sizes");
  }
  BT_ASSIGN_OR_RETURN(const PixelBuffer rgba, PixelBuffer::Make(size_t{4} * width * height));
  BT_RETURN_IF_ERROR(
      DecodeInto(data, MODE_RGBA, rgba.bytes.get(), features.width, features.height));
  BT_ASSIGN_OR_RETURN(Rgb rgb, Rgb::Make(static_cast<int>(chunks.canvas_width),
                                         static_cast<int>(chunks.canvas_height)));
  if (width != chunks.canvas_width || height != chunks.canvas_height) {
    std::fill_n(rgb.row(0), rgb.size(), uint8_t{255});
  }
  for (uint32_t y = 0; y < height; ++y) {
    CompositeOnWhite(rgba.bytes.get() + size_t{4} * width * y, width,
                     rgb.row(static_cast<int>(top + y)) + size_t{3} * left);
  }
  return rgb;
}

Result<Rgb> DecodeStill(const Chunks& chunks, const PictureLimits& limits) {
  WebPBitstreamFeatures features;
  const VP8StatusCode code = WebPGetFeatures(Unsigned(chunks.file), chunks.file.size(), &features);
  if (code != VP8_STATUS_OK) return Failed(code);
  BT_RETURN_IF_ERROR(CheckSize(kFormat, static_cast<uint64_t>(features.width),
                               static_cast<uint64_t>(features.height), limits));
  BT_ASSIGN_OR_RETURN(Rgb rgb, Rgb::Make(features.width, features.height));
  if (features.has_alpha == 0) {
    BT_RETURN_IF_ERROR(
        DecodeInto(chunks.file, MODE_RGB, rgb.row(0), features.width, features.height));
    return rgb;
  }
  const size_t pixels = static_cast<size_t>(features.width) * features.height;
  BT_ASSIGN_OR_RETURN(const PixelBuffer rgba, PixelBuffer::Make(4 * pixels));
  BT_RETURN_IF_ERROR(
      DecodeInto(chunks.file, MODE_RGBA, rgba.bytes.get(), features.width, features.height));
  CompositeOnWhite(rgba.bytes.get(), pixels, rgb.row(0));
  return rgb;
}

}  // namespace

Result<DecodedPicture> DecodeWebp(std::string_view bytes, const PictureLimits& limits) {
  BT_ASSIGN_OR_RETURN(const Chunks chunks, ReadChunks(bytes));
  const bool animated = !chunks.frame.empty() && chunks.canvas_width != 0;
  BT_ASSIGN_OR_RETURN(Rgb rgb,
                      animated ? DecodeFrame(chunks, limits) : DecodeStill(chunks, limits));
  return DecodedPicture{.rgb = std::move(rgb), .orientation = ReadOrientation(chunks.exif)};
}

}  // namespace baltoro
