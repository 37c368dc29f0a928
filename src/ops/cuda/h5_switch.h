#pragma once

// Which of the forms under test are taken: bits of the environment's BT_H5, unset all recommended
// ones, 0 none.

#include <cstdlib>

namespace baltoro::cuda {

enum SwitchH5Bits : int {
  kH5ToLatents = 1,       // rotated parts shared out, the next kernel let start late
  kH5ValuesInParts = 2,   // of more than 128 rows: products of what has come
  kH5ValuesLate = 4,      // the next kernel let start late
  kH5ToLatentsEarly = 8,  // with kH5ToLatents: the next kernel let start as before
  kH5Joined = 16,         // shared experts and router from 129 rows on
  kH5JoinedFew = 32,      // the same of 65 to 128 rows
  kH5Deep = 64,           // matrices of 4,096 columns and more
  kH5Shallow = 128,       // of fewer
  kH5Queries = 256,       // queries, rotated
  kH5More = 512,          // single matrices up to 1,024 rows, and where no gain is expected
  kH5Recommended = 1 + 2 + 16 + 32 + 64 + 128 + 256,
};

inline int SwitchH5() {
  static const int value = [] {
    const char* const given = std::getenv("BT_H5");
    return given == nullptr ? int{kH5Recommended} : std::atoi(given);
  }();
  return value;
}

}  // namespace baltoro::cuda
