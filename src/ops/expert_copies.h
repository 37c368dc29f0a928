#pragma once

#include <cstdint>
#include <span>

namespace baltoro {

// Of a layer whose experts are balanced over the ranks: which slots hold each expert, numbered over
// all ranks. Slots slots[first[e]] up to slots[first[e + 1] - 1] have expert e, one at least. All
// lie in the memory of the operations, and stay where they are while experts move: what is recorded
// reads what they hold when it runs.
struct ExpertCopies {
  std::span<const int32_t> first;  // [E + 1]; empty: experts are not balanced
  std::span<const int32_t> slots;  // [slots of all ranks]
  // One more for each row: of each slot, and of each expert whatever its copy. Empty: uncounted.
  std::span<int64_t> rows;    // [slots of all ranks]
  std::span<int64_t> chosen;  // [E]

  bool empty() const { return first.empty(); }
};

// Which of several copies a row reads: FNV-1a over what it chose, best first, and the expert once
// more, so that two experts of equally many copies need not lie on the same rank for all rows.
inline constexpr uint32_t kCopyHashStart = 2166136261u;
constexpr uint32_t MixChosen(uint32_t hash, int32_t expert) {
  return (hash ^ static_cast<uint32_t>(expert)) * 16777619u;
}
// One of `count` copies of `expert`, for a row whose chosen experts were mixed to `hash`.
constexpr uint32_t ChosenCopy(uint32_t hash, int32_t expert, uint32_t count) {
  return count <= 1 ? 0 : (MixChosen(hash, expert) >> 8) % count;
}

}  // namespace baltoro
