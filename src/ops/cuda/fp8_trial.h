#pragma once

#include <cstdlib>

namespace baltoro::cuda {

// Which of the forms on trial are used, a bit each.
inline bool Tries(int bit) {
  static const int bits = [] {
    const char* const value = std::getenv("BT_H8");
    return value == nullptr ? 0xff : std::atoi(value);
  }();
  return (bits >> bit & 1) != 0;
}

inline constexpr int kTryLarge = 0, kTrySplit = 1, kTryEarlyWeights = 2, kTrySingle = 3,
                     kTryChoice = 4, kTryBuffers = 5, kTryKnown = 6, kTryFeed = 7;

}  // namespace baltoro::cuda
