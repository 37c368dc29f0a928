// A JPEG file, from its markers to its pixels.

#include "fuzz/picture_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  baltoro::CheckPicture(baltoro::AsFile(data, size, "\xff\xd8\xff"));
  return 0;
}
