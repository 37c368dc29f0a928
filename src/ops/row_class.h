#pragma once

// Operations may compute many rows in another way than few, with kernels that are loaded when they
// are first used. What is not in the program itself (a library's kernels) they choose by the class
// of the number of rows alone, so that a trial step of each class has used all that can come.

#include <bit>
#include <cstdint>

namespace baltoro {

// The largest number of rows in the class of `rows`, which is at least 1: multiples of 16 up to 64,
// then two of each doubling.
inline int64_t RowClass(int64_t rows) {
  if (rows <= 64) return (rows + 15) / 16 * 16;
  const auto top = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows)));
  const int64_t middle = top / 4 * 3;
  return rows <= middle ? middle : top;
}

}  // namespace baltoro
