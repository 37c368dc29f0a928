// A GIF file: its blocks, and the codes of its first frame.

#include "fuzz/picture_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baltoro::CheckPicture(baltoro::AsFile(data, size, "GIF89a"));
  return 0;
}
