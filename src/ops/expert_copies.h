#pragma once

#include <cstdint>
#include <span>

namespace baltoro {

// Of a layer whose experts are balanced over the ranks: which slots hold each expert, numbered over
// all ranks. Slots slots[first[e]] up to slots[first[e + 1] - 1] have expert e, one at least.
struct ExpertCopies {
  std::span<const int32_t> first;  // [E + 1]; empty: experts are not balanced
  std::span<const int32_t> slots;  // [slots of all ranks]
  std::span<int64_t> rows;         // [slots of all ranks]: one more for each row; empty: uncounted

  bool empty() const { return first.empty(); }
};

}  // namespace baltoro
