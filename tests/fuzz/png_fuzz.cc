// A PNG file: as it is, which tests the checksums, and with its checksums made right, which lets
// what was changed through to the decoder.

#include <zlib.h>

#include "fuzz/picture_fuzz.h"

namespace {

void RightChecksums(std::string& file) {
  for (size_t at = 8; file.size() - at >= 12;) {
    const uint32_t length = baltoro::Big32(file, at);
    if (length > file.size() - at - 12) return;
    const auto* checked = reinterpret_cast<const Bytef*>(file.data() + at + 4);
    const auto sum = crc32(0, checked, length + 4);
    for (int i = 0; i < 4; ++i) {
      file[at + 8 + length + i] = static_cast<char>(sum >> (24 - 8 * i));
    }
    at += size_t{12} + length;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file = baltoro::AsFile(data, size, "\x89PNG\r\n\x1a\n");
  baltoro::CheckPicture(file);
  RightChecksums(file);
  baltoro::CheckPicture(file);
  return 0;
}
