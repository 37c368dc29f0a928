#pragma once

// Small picture files for this room's tests, written by the encoders of the same libraries.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include <jpeglib.h>

#include <webp/encode.h>
#include <zlib.h>

#include "base/check.h"

namespace baltoro {

inline std::string Big(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}
inline std::string Little(uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i));
  return out;
}

inline std::string PngChunk(std::string_view type, std::string_view data) {
  const std::string checked = std::string(type) + std::string(data);
  const auto sum =
      crc32(0, reinterpret_cast<const Bytef*>(checked.data()), static_cast<uInt>(checked.size()));
  return Big(static_cast<uint32_t>(data.size())) + checked + Big(static_cast<uint32_t>(sum));
}

inline std::string Deflated(std::string_view data) {
  std::string out(compressBound(data.size()), '\0');
  uLongf size = out.size();
  BT_CHECK(compress2(reinterpret_cast<Bytef*>(out.data()), &size,
                     reinterpret_cast<const Bytef*>(data.data()), data.size(), 9) == Z_OK);
  out.resize(size);
  return out;
}

// A PNG of these rows, each with its filter byte before it; `chunks` stand before its data.
inline std::string MakePng(uint32_t width,
                           uint32_t height,
                           int depth,
                           int colour,
                           std::string_view rows,
                           std::string_view chunks = {}) {
  std::string header = Big(width) + Big(height);
  for (const int value : {depth, colour, 0, 0, 0}) header += static_cast<char>(value);
  return "\x89PNG\r\n\x1a\n" + PngChunk("IHDR", header) + std::string(chunks) +
         PngChunk("IDAT", Deflated(rows)) + PngChunk("IEND", "");
}

struct JpegOptions {
  int components = 3;  // 1, 3 or 4
  bool progressive = false;
  int quality = 95;
};

// A JPEG of samples [height, width, components].
inline std::string MakeJpeg(int width,
                            int height,
                            const std::vector<uint8_t>& samples,
                            const JpegOptions& options = {}) {
  jpeg_compress_struct encoder = {};
  jpeg_error_mgr errors = {};
  encoder.err = jpeg_std_error(&errors);
  jpeg_create_compress(&encoder);
  unsigned char* out = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&encoder, &out, &size);
  encoder.image_width = static_cast<JDIMENSION>(width);
  encoder.image_height = static_cast<JDIMENSION>(height);
  encoder.input_components = options.components;
  encoder.in_color_space = options.components == 1   ? JCS_GRAYSCALE
                           : options.components == 3 ? JCS_RGB
                                                     : JCS_CMYK;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, options.quality, TRUE);
  if (options.progressive) jpeg_simple_progression(&encoder);
  jpeg_start_compress(&encoder, TRUE);
  for (int y = 0; y < height; ++y) {
    auto* row =
        const_cast<uint8_t*>(samples.data()) + static_cast<size_t>(y) * width * options.components;
    jpeg_write_scanlines(&encoder, &row, 1);
  }
  jpeg_finish_compress(&encoder);
  std::string file(reinterpret_cast<const char*>(out), size);
  jpeg_destroy_compress(&encoder);
  std::free(out);
  return file;
}

// A lossless or a lossy WebP of rgba [height, width, 4].
inline std::string MakeWebp(int width,
                            int height,
                            const std::vector<uint8_t>& rgba,
                            bool lossless = true) {
  uint8_t* out = nullptr;
  const size_t size = lossless ? WebPEncodeLosslessRGBA(rgba.data(), width, height, 4 * width, &out)
                               : WebPEncodeRGBA(rgba.data(), width, height, 4 * width, 80, &out);
  std::string file(reinterpret_cast<const char*>(out), size);
  WebPFree(out);
  return file;
}

inline std::string RiffChunk(std::string_view type, std::string_view data) {
  std::string out = std::string(type) + Little(data.size(), 4) + std::string(data);
  if (data.size() % 2 != 0) out += '\0';
  return out;
}
inline std::string Riff(std::string_view chunks) {
  return "RIFF" + Little(chunks.size() + 4, 4) + "WEBP" + std::string(chunks);
}

// A GIF frame at (left, top) whose pixels are of 2 bits, each written as a code of its own.
inline std::string GifFrame(int left, int top, int width, int height, std::string_view indices) {
  constexpr int kBits = 3;  // of a code: 4 literals, clear, end
  constexpr uint32_t kClear = 4;
  std::string packed;
  uint32_t held = 0;
  int held_bits = 0;
  const auto put = [&](uint32_t code) {
    held |= code << held_bits;
    for (held_bits += kBits; held_bits >= 8; held_bits -= 8, held >>= 8) {
      packed += static_cast<char>(held);
    }
  };
  for (const char index : indices) {
    put(kClear);  // so that codes never grow
    put(static_cast<uint32_t>(index));
  }
  put(kClear + 1);
  packed += static_cast<char>(held);
  std::string out = "," + Little(left, 2) + Little(top, 2) + Little(width, 2) + Little(height, 2) +
                    std::string(1, '\0') + "\2";
  for (size_t at = 0; at < packed.size(); at += 255) {
    const std::string block = packed.substr(at, 255);
    out += static_cast<char>(block.size()) + block;
  }
  return out + std::string(1, '\0');
}
// What stands before the frames: a canvas and four colours of 3 bytes.
inline std::string GifHeader(int width, int height, std::string_view colours) {
  return "GIF89a" + Little(width, 2) + Little(height, 2) + "\x81" + std::string(2, '\0') +
         std::string(colours);
}

// An Exif block that says nothing but an orientation.
inline std::string MakeExif(int orientation) {
  return std::string("Exif\0\0MM\0*", 10) + Big(8) + std::string("\0\1\1\x12\0\3", 6) + Big(1) +
         std::string(1, '\0') + static_cast<char>(orientation) + std::string(6, '\0');
}

}  // namespace baltoro
