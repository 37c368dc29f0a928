#pragma once

// Forms that are being compared: a bit each of BT_H8, all of them without it.

#include <cstdlib>

namespace baltoro::cuda {

inline constexpr int kEarlyNorm = 1, kFp8Chooses = 2, kNearChoice = 4, kTwoStrips = 8,
                     kJoinedFp8 = 16, kCarveout = 32, kJoinedInt4 = 64, kSeveralFp8 = 128,
                     kRehearses = 4096, kSeveralInt4 = 8192;

inline int Forms() {
  static const int forms = [] {
    const char* const given = std::getenv("BT_H8");
    return given == nullptr ? 254 + 8192 : std::atoi(given);
  }();
  return forms;
}

inline bool Variant(int form) {
  return (Forms() & form) != 0;
}

// Parts that a block of one token has under way (FP8), or behind which it asks for down's weights
// (INT4), in bits 8 to 11.
inline int PartsAhead(int otherwise) {
  const int given = Forms() >> 8 & 15;
  return given == 0 ? otherwise : given;
}

}  // namespace baltoro::cuda
