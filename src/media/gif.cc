// The first frame of a GIF. Our own, because the first frame alone is wanted: that is an LZW of a
// hundred lines over memory that this file allocates, less to attack than a library that reads all
// frames and keeps their extensions.

#include <algorithm>
#include <array>

#include "media/picture_format.h"

namespace baltoro {
namespace {

constexpr std::string_view kFormat = "GIF";
constexpr int kCodesMax = 4096;
constexpr uint32_t kImage = 0x2c;
constexpr uint32_t kExtension = 0x21;
constexpr uint32_t kGraphicControl = 0xf9;
constexpr uint32_t kTrailer = 0x3b;

struct Frame {
  uint32_t left = 0;
  uint32_t top = 0;
  uint32_t width = 0;
  uint32_t height = 0;
  bool interlaced = false;
};

// Indices that a table does not have are greys, as all are where there is no table.
using Palette = std::array<std::array<uint8_t, 3>, 256>;

// A place in the file; every step is checked against its end.
class GifReader {
 public:
  explicit GifReader(std::string_view bytes) : bytes_(bytes) {}

  bool Has(size_t count) const { return bytes_.size() - at_ >= count; }
  uint32_t Next() { return Byte(bytes_, at_++); }
  uint32_t Next16() {
    at_ += 2;
    return Little16(bytes_, at_ - 2);
  }
  std::string_view Take(size_t count) {
    at_ += count;
    return bytes_.substr(at_ - count, count);
  }
  // The next block of a chain of them, empty at its end; false where the file ends.
  bool TakeBlock(std::string_view& block) {
    if (!Has(1)) return false;
    const size_t size = Next();
    if (!Has(size)) return false;
    block = Take(size);
    return true;
  }
  // A colour table of 2^(bits of `flags` + 1) colours, where the flags say that there is one.
  bool TakePalette(uint32_t flags, Palette& palette) {
    if ((flags & 0x80) == 0) return true;
    const size_t colours = size_t{2} << (flags & 7);
    if (!Has(3 * colours)) return false;
    for (int i = 0; i < 256; ++i) palette[i].fill(static_cast<uint8_t>(i));
    for (size_t i = 0; i < colours; ++i) {
      for (uint8_t& channel : palette[i]) channel = static_cast<uint8_t>(Next());
    }
    return true;
  }

 private:
  std::string_view bytes_;
  size_t at_ = 0;
};

// The codes of an image's chain of blocks.
class CodeReader {
 public:
  explicit CodeReader(GifReader& reader) : reader_(reader) {}

  // The next `bits` bits; false where the chain or the file ends.
  bool Next(int bits, uint32_t& code) {
    while (held_bits_ < bits) {
      if (block_.empty() && (!reader_.TakeBlock(block_) || block_.empty())) return false;
      held_ |= Byte(block_, 0) << held_bits_;
      held_bits_ += 8;
      block_.remove_prefix(1);
    }
    code = held_ & ((1U << bits) - 1);
    held_ >>= bits;
    held_bits_ -= bits;
    return true;
  }

 private:
  GifReader& reader_;
  std::string_view block_;
  uint32_t held_ = 0;
  int held_bits_ = 0;
};

// Writes `count` colour indices. A code stands for the string of another code and one index more.
Status DecodeIndices(GifReader& reader, size_t count, uint8_t* out) {
  if (!reader.Has(1)) return ShortPicture(kFormat);
  const uint32_t literal_bits = reader.Next();
  if (literal_bits < 1 || literal_bits > 8) {
    return BrokenPicture(kFormat, "its codes have no size that GIF knows");
  }
  const uint32_t clear = 1U << literal_bits;
  std::array<uint16_t, kCodesMax> before{};  // the code without its last index
  std::array<uint16_t, kCodesMax> length{};
  std::array<uint8_t, kCodesMax> last{};
  std::array<uint8_t, kCodesMax> first{};
  for (uint32_t i = 0; i < clear; ++i) {
    length[i] = 1;
    last[i] = first[i] = static_cast<uint8_t>(i);
  }

  CodeReader codes(reader);
  constexpr uint32_t kNone = kCodesMax;
  uint32_t previous = kNone;
  uint32_t next = clear + 2;
  int bits = static_cast<int>(literal_bits) + 1;
  for (size_t done = 0; done < count;) {
    uint32_t code = 0;
    if (!codes.Next(bits, code)) return ShortPicture(kFormat);
    if (code == clear) {
      previous = kNone;
      next = clear + 2;
      bits = static_cast<int>(literal_bits) + 1;
      continue;
    }
    if (code == clear + 1) return ShortPicture(kFormat);
    if (previous == kNone ? code > clear : code > next) {
      return BrokenPicture(kFormat, "a code of its data has no meaning yet");
    }
    if (previous != kNone && next < kCodesMax) {
      // The code itself may be the one that is made here.
      const uint32_t begins = code == next ? previous : code;
      before[next] = static_cast<uint16_t>(previous);
      length[next] = static_cast<uint16_t>(length[previous] + 1);
      first[next] = first[previous];
      last[next] = first[begins];
      ++next;
      if (next == (1U << bits) && bits < 12) ++bits;
    }
    const size_t string = length[code];
    uint32_t at = code;
    for (size_t i = string; i-- > 0; at = before[at]) {
      if (done + i < count) out[done + i] = last[at];
    }
    done += string;
    previous = code;
  }
  return {};
}

// The row of the picture that is the i-th in the file.
uint32_t RowOf(const Frame& frame, uint32_t i) {
  if (!frame.interlaced) return i;
  uint32_t begin = 0;
  for (const auto& [from, step] : {std::pair{0U, 8U}, {4U, 8U}, {2U, 4U}, {1U, 2U}}) {
    const uint32_t rows = frame.height > from ? (frame.height - from + step - 1) / step : 0;
    if (i < begin + rows) return from + (i - begin) * step;
    begin += rows;
  }
  return i;
}

}  // namespace

Result<DecodedPicture> DecodeGif(std::string_view bytes, const PictureLimits& limits) {
  GifReader reader(bytes);
  if (!reader.Has(13)) return ShortPicture(kFormat);
  reader.Take(6);
  uint32_t width = reader.Next16();
  uint32_t height = reader.Next16();
  const uint32_t screen_flags = reader.Next();
  reader.Take(2);  // the background, which nobody paints, and a ratio that nobody heeds
  Palette palette;
  for (int i = 0; i < 256; ++i) palette[i].fill(static_cast<uint8_t>(i));
  if (!reader.TakePalette(screen_flags, palette)) return ShortPicture(kFormat);

  int transparent = -1;
  for (;;) {
    if (!reader.Has(1)) return ShortPicture(kFormat);
    const uint32_t kind = reader.Next();
    if (kind == kImage) break;
    if (kind == kTrailer) return BrokenPicture(kFormat, "it has no frame");
    if (kind != kExtension) continue;  // a stray byte, such as a 0 too many
    if (!reader.Has(1)) return ShortPicture(kFormat);
    const bool control = reader.Next() == kGraphicControl;
    bool first = true;
    for (std::string_view block;; first = false) {
      if (!reader.TakeBlock(block)) return ShortPicture(kFormat);
      if (block.empty()) break;
      if (control && first && block.size() >= 4 && (Byte(block, 0) & 1) != 0) {
        transparent = static_cast<int>(Byte(block, 3));
      }
    }
  }
  if (!reader.Has(9)) return ShortPicture(kFormat);
  Frame frame;
  frame.left = reader.Next16();
  frame.top = reader.Next16();
  frame.width = reader.Next16();
  frame.height = reader.Next16();
  const uint32_t flags = reader.Next();
  frame.interlaced = (flags & 0x40) != 0;
  if (!reader.TakePalette(flags, palette)) return ShortPicture(kFormat);
  if (frame.width == 0 || frame.height == 0) {
    return BrokenPicture(kFormat, "its first frame has no pixels");
  }
  width = std::max(width, frame.left + frame.width);
  height = std::max(height, frame.top + frame.height);
  BT_RETURN_IF_ERROR(CheckSize(kFormat, width, height, limits));

  const size_t count = static_cast<size_t>(frame.width) * frame.height;
  BT_ASSIGN_OR_RETURN(const PixelBuffer indices, PixelBuffer::Make(count));
  BT_RETURN_IF_ERROR(DecodeIndices(reader, count, indices.bytes.get()));
  if (transparent >= 0) palette[transparent].fill(255);
  BT_ASSIGN_OR_RETURN(Rgb rgb, Rgb::Make(static_cast<int>(width), static_cast<int>(height)));
  const auto& around = palette[transparent >= 0 ? transparent : 0];
  if (frame.width != width || frame.height != height) {
    for (size_t i = 0; i < rgb.size(); ++i) rgb.pixels.bytes[i] = around[i % 3];
  }
  for (uint32_t i = 0; i < frame.height; ++i) {
    const uint8_t* from = indices.bytes.get() + static_cast<size_t>(i) * frame.width;
    uint8_t* to = rgb.row(static_cast<int>(frame.top + RowOf(frame, i))) + 3 * frame.left;
    for (uint32_t x = 0; x < frame.width; ++x) {
      std::copy_n(palette[from[x]].data(), 3, to + 3 * static_cast<size_t>(x));
    }
  }
  return DecodedPicture{.rgb = std::move(rgb)};
}

}  // namespace baltoro
