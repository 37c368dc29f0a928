// A WebP file: its chunks, and what libwebp makes of the first frame.

#include "fuzz/picture_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace std::string_view_literals;
  std::string file = baltoro::AsFile(data, size, "RIFF\0\0\0\0WEBP"sv);
  // The stated length is right, but for every sixteenth input.
  if (size % 16 != 0) {
    const auto length = static_cast<uint32_t>(file.size() - 8);
    std::memcpy(file.data() + 4, &length, sizeof(length));
  } else if (size >= 8) {
    std::memcpy(file.data() + 4, data + 4, 4);
  }
  baltoro::CheckPicture(file);
  return 0;
}
