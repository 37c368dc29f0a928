#pragma once

#include <cstdlib>

namespace baltoro::cuda {

// BT_H5: a mask of what is new, 63 where unset.
inline bool H5(int bit) {
  static const int mask = [] {
    const char* const set = std::getenv("BT_H5");
    return set == nullptr ? 63 : std::atoi(set);
  }();
  return (mask & bit) != 0;
}

}  // namespace baltoro::cuda
