#include "bench/serve/random_picture.h"

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <jpeglib.h>

namespace baltoro {
namespace {

constexpr int kQuality = 75;

}  // namespace

std::string RandomJpeg(int width, int height, std::mt19937_64& random) {
  jpeg_compress_struct encoder = {};
  jpeg_error_mgr errors = {};
  encoder.err = jpeg_std_error(&errors);  // says why and ends the process
  jpeg_create_compress(&encoder);
  unsigned char* file = nullptr;
  unsigned long bytes = 0;
  jpeg_mem_dest(&encoder, &file, &bytes);
  encoder.image_width = static_cast<JDIMENSION>(width);
  encoder.image_height = static_cast<JDIMENSION>(height);
  encoder.input_components = 3;
  encoder.in_color_space = JCS_RGB;
  jpeg_set_defaults(&encoder);
  jpeg_set_quality(&encoder, kQuality, TRUE);
  jpeg_start_compress(&encoder, TRUE);
  // Whole words are drawn; the last one of a row may reach beyond it.
  std::vector<uint64_t> row((static_cast<size_t>(width) * 3 + 7) / 8);
  std::vector<JSAMPLE> samples(row.size() * 8);
  JSAMPROW line = samples.data();
  for (int y = 0; y < height; ++y) {
    for (uint64_t& word : row) word = random();
    std::memcpy(samples.data(), row.data(), samples.size());
    jpeg_write_scanlines(&encoder, &line, 1);
  }
  jpeg_finish_compress(&encoder);
  std::string out(reinterpret_cast<const char*>(file), bytes);
  jpeg_destroy_compress(&encoder);
  std::free(file);
  return out;
}

}  // namespace baltoro
