// Decodes, scales and cuts pictures for a comparison with Pillow (tests/pictures_vs_pillow.py).
//
//   picture_dump < files > pictures
//
// In: records of a little-endian 32-bit count and that many bytes, a file each. Out, for each, ten
// 32-bit numbers (0 where it was taken, or a length; width and height decoded; width and height
// scaled; grid height and width; tokens; microseconds of decoding, of scaling) and then the
// refusal's text, or the decoded pixels, the scaled ones, the patches, and the hash. Exit status 1
// and a line on stderr if something is wrong.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "media/cut_patches.h"
#include "media/decode_picture.h"
#include "media/resample.h"

namespace baltoro {
namespace {

using Clock = std::chrono::steady_clock;

uint32_t MicrosecondsSince(Clock::time_point start) {
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(Clock::now() - start).count());
}

bool Write(const void* data, size_t size) {
  return std::fwrite(data, 1, size, stdout) == size;
}

Rgb Copy(const Rgb& picture) {
  Result<Rgb> out = Rgb::Make(picture.width, picture.height);
  BT_CHECK(out.ok());
  std::memcpy(out.value().row(0), picture.row(0), picture.size());
  return std::move(out).value();
}

bool WriteOne(const std::string& file) {
  uint32_t numbers[10] = {};
  const auto start = Clock::now();
  const Result<Rgb> decoded = DecodePicture(file);
  numbers[8] = MicrosecondsSince(start);
  if (!decoded.ok()) {
    const std::string message = decoded.status().message();
    numbers[0] = static_cast<uint32_t>(message.size());
    return Write(numbers, sizeof(numbers)) && Write(message.data(), message.size());
  }
  const PictureRules rules;
  const PictureFit fit = FitPicture(decoded.value().width, decoded.value().height, rules);
  Rgb copy = Copy(decoded.value());
  const auto scaling = Clock::now();
  const Result<Rgb> scaled = ResampleBicubic(std::move(copy), fit.width, fit.height);
  numbers[9] = MicrosecondsSince(scaling);
  const Result<PicturePatches> patches = CutPatches(Copy(decoded.value()), rules);
  if (!scaled.ok() || !patches.ok()) return false;
  const Result<PictureHash> hash = HashPatches(rules, patches.value());
  if (!hash.ok()) return false;
  numbers[1] = static_cast<uint32_t>(decoded.value().width);
  numbers[2] = static_cast<uint32_t>(decoded.value().height);
  numbers[3] = static_cast<uint32_t>(scaled.value().width);
  numbers[4] = static_cast<uint32_t>(scaled.value().height);
  numbers[5] = static_cast<uint32_t>(patches.value().grid_height);
  numbers[6] = static_cast<uint32_t>(patches.value().grid_width);
  numbers[7] = static_cast<uint32_t>(patches.value().tokens);
  return Write(numbers, sizeof(numbers)) && Write(decoded.value().row(0), decoded.value().size()) &&
         Write(scaled.value().row(0), scaled.value().size()) &&
         Write(patches.value().bytes.bytes.get(), patches.value().size) &&
         Write(hash.value().data(), hash.value().size());
}

}  // namespace
}  // namespace baltoro

int main() {
  uint32_t count = 0;
  std::string file;
  while (std::fread(&count, sizeof(count), 1, stdin) == 1) {
    file.resize(count);
    if (std::fread(file.data(), 1, count, stdin) != count) {
      std::fprintf(stderr, "the input ends inside a file\n");
      return 1;
    }
    if (!baltoro::WriteOne(file)) {
      std::fprintf(stderr, "cannot write, or too little memory\n");
      return 1;
    }
  }
  return 0;
}
