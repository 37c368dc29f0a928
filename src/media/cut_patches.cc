#include "media/cut_patches.h"

#include <openssl/evp.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>

#include "media/resample.h"

namespace baltoro {
namespace {

// Of one patch: the pixels that the picture has there, and black around them.
void CutOne(const Rgb& picture, int left, int top, int patch, uint8_t* out) {
  const int columns = std::clamp(picture.width - left, 0, patch);
  const int rows = std::clamp(picture.height - top, 0, patch);
  if (columns < patch || rows < patch) {
    std::memset(out, 0, size_t{3} * patch * patch);
  }
  for (int y = 0; y < rows && columns > 0; ++y) {
    const uint8_t* from = picture.row(top + y) + 3 * static_cast<size_t>(left);
    for (int c = 0; c < 3; ++c) {
      uint8_t* to = out + (static_cast<size_t>(c) * patch + y) * patch;
      for (int x = 0; x < columns; ++x) to[x] = from[3 * x + c];
    }
  }
}

}  // namespace

Result<PictureHash> HashPatches(const PictureRules& rules, const PicturePatches& patches) {
  static_assert(std::endian::native == std::endian::little);
  // Every number has its width, so no two pictures write the same bytes in another way.
  std::array<uint8_t, 96> head = {};
  size_t at = 0;
  const auto put = [&](const auto& value) {
    std::memcpy(head.data() + at, &value, sizeof(value));
    at += sizeof(value);
  };
  put(int32_t{rules.patch});
  put(int32_t{rules.merge});
  put(int64_t{rules.patches_max});
  put(int32_t{rules.side_patches_max});
  put(rules.mean);
  put(rules.std);
  put(int32_t{patches.frames});
  put(int32_t{patches.grid_height});
  put(int32_t{patches.grid_width});

  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  std::array<uint8_t, 32> digest = {};
  // OpenSSL wants memory here and nothing else.
  if (context == nullptr || EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) != 1 ||
      EVP_DigestUpdate(context.get(), head.data(), head.size()) != 1 ||
      EVP_DigestUpdate(context.get(), patches.bytes.bytes.get(), patches.size) != 1 ||
      EVP_DigestFinal_ex(context.get(), digest.data(), nullptr) != 1) {
    return NoMemoryForPicture();
  }
  PictureHash hash;
  std::copy_n(digest.begin(), hash.size(), hash.begin());
  return hash;
}

Result<PicturePatches> CutPatches(Rgb picture, const PictureRules& rules) {
  const PictureFit fit = FitPicture(picture.width, picture.height, rules);
  const int64_t pixels = int64_t{picture.width} * picture.height;
  BT_ASSIGN_OR_RETURN(const Rgb scaled, ResampleBicubic(std::move(picture), fit.width, fit.height));
  PicturePatches out{.grid_height = fit.grid_height,
                     .grid_width = fit.grid_width,
                     .tokens = static_cast<int>(fit.tokens(rules)),
                     .pixels = pixels};
  const size_t patch_bytes = size_t{3} * rules.patch * rules.patch;
  out.size = static_cast<size_t>(fit.patches()) * patch_bytes;
  BT_ASSIGN_OR_RETURN(out.bytes, PixelBuffer::Make(out.size));
  uint8_t* to = out.bytes.bytes.get();
  for (int y = 0; y < fit.grid_height; ++y) {
    for (int x = 0; x < fit.grid_width; ++x, to += patch_bytes) {
      CutOne(scaled, x * rules.patch, y * rules.patch, rules.patch, to);
    }
  }
  return out;
}

Result<PicturePatches> JoinFrames(std::span<const PicturePatches> frames) {
  const PicturePatches& first = frames.front();
  PicturePatches out{.frames = static_cast<int>(frames.size()),
                     .grid_height = first.grid_height,
                     .grid_width = first.grid_width,
                     .tokens = first.tokens};
  for (const PicturePatches& frame : frames) {
    if (frame.grid_height != first.grid_height || frame.grid_width != first.grid_width) {
      return InvalidArgument("its frames have several sizes; a video's are all of one");
    }
    out.size += frame.size;
    out.pixels += frame.pixels;
  }
  BT_ASSIGN_OR_RETURN(out.bytes, PixelBuffer::Make(out.size));
  uint8_t* to = out.bytes.bytes.get();
  for (const PicturePatches& frame : frames) {
    to = std::copy_n(frame.bytes.bytes.get(), frame.size, to);
  }
  return out;
}

}  // namespace baltoro
