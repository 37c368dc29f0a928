#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace baltoro {

void CheckFailed(const char* file, int line, const char* what) {
  std::fprintf(stderr, "check failed: %s (%s:%d)\n", what, file, line);
  std::fflush(stderr);
  std::abort();
}

}  // namespace baltoro
