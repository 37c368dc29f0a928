#pragma once

// A mask of forms under measurement, by the environment; all of them where it says nothing.
//   1 hundreds of rows in short code; 2 attention's keys leave the L2 first; 4 one matrix by
//   hundreds of rows; 8 kernels of rows and the preparation of the experts leave all of the L1 to
//   shared memory, 32 products of heads too; 16 tens of rows in short code; 64 norms of 9 to 16
//   rows let the next kernel start first

#include <cstdlib>

namespace baltoro::cuda {

inline int H7() {
  static const int value = [] {
    const char* const given = std::getenv("BT_H7");
    return given != nullptr ? std::atoi(given) : 127;
  }();
  return value;
}

}  // namespace baltoro::cuda
