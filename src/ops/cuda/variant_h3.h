#pragma once

// What of a set of changes is on, while they are measured. 1: the end of few tokens, 2: merge and
// value heads by clusters, 4: of 33 to 64 rows too, 8: of 65 to 128, 16: both run once without
// work before they wait, 32: the end has a multiprocessor with one other block at most.

#include <cstdlib>

namespace baltoro::cuda {

inline int VariantH3() {
  static const int variant = [] {
    const char* const text = std::getenv("BT_H3");
    return text != nullptr ? std::atoi(text) : 7;
  }();
  return variant;
}

}  // namespace baltoro::cuda
