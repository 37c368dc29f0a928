#include "media/orientation.h"

#include <algorithm>
#include <cstring>

#include "media/picture_format.h"

namespace baltoro {
namespace {

constexpr uint32_t kOrientationTag = 0x0112;
constexpr uint32_t kShort = 3;
constexpr uint32_t kLong = 4;
constexpr int kTile =
    32;  // pixels each way: rows of the one side and of the other stay in the cache

}  // namespace

int ReadOrientation(std::string_view exif) {
  using namespace std::string_view_literals;
  if (exif.starts_with("Exif\0\0"sv)) exif.remove_prefix(6);
  if (exif.size() < 8) return 1;
  const bool big = exif.starts_with("MM\0*"sv);
  if (!big && !exif.starts_with("II*\0"sv)) return 1;
  const auto read16 = [&](size_t at) { return big ? Big16(exif, at) : Little16(exif, at); };
  const auto read32 = [&](size_t at) { return big ? Big32(exif, at) : Little32(exif, at); };

  const size_t directory = read32(4);
  if (directory > exif.size() || exif.size() - directory < 2) return 1;
  const size_t entries = std::min<size_t>(read16(directory), (exif.size() - directory - 2) / 12);
  for (size_t i = 0; i < entries; ++i) {
    const size_t entry = directory + 2 + 12 * i;
    if (read16(entry) != kOrientationTag) continue;
    const uint32_t type = read16(entry + 2);
    const uint32_t value = type == kShort  ? read16(entry + 8)
                           : type == kLong ? read32(entry + 8)
                                           : 1;
    return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
  }
  return 1;
}

Result<Rgb> Orient(Rgb picture, int orientation) {
  if (orientation <= 1 || orientation > 8) return picture;
  const bool sides_change = orientation >= 5;
  const int width = sides_change ? picture.height : picture.width;
  const int height = sides_change ? picture.width : picture.height;
  BT_ASSIGN_OR_RETURN(Rgb out, Rgb::Make(width, height));

  // The pixel at (x, y) comes from `first` plus x times `right` plus y times `down`, in pixels.
  const int64_t row = picture.width;
  const int64_t last_row = row * (picture.height - 1);
  const int64_t last = picture.width - 1;
  int64_t first = 0;
  int64_t right = 1;
  int64_t down = row;
  switch (orientation) {
    case 2:
      first = last, right = -1;
      break;
    case 3:
      first = last_row + last, right = -1, down = -row;
      break;
    case 4:
      first = last_row, down = -row;
      break;
    case 5:
      right = row, down = 1;
      break;
    case 6:
      first = last_row, right = -row, down = 1;
      break;
    case 7:
      first = last_row + last, right = -row, down = -1;
      break;
    case 8:
      first = last, right = row, down = -1;
      break;
    default:
      break;
  }
  const uint8_t* from = picture.row(0);
  for (int top = 0; top < height; top += kTile) {
    for (int left = 0; left < width; left += kTile) {
      for (int y = top; y < std::min(top + kTile, height); ++y) {
        for (int x = left; x < std::min(left + kTile, width); ++x) {
          std::memcpy(out.row(y) + 3 * static_cast<size_t>(x),
                      from + 3 * (first + right * x + down * y), 3);
        }
      }
    }
  }
  return out;
}

}  // namespace baltoro
