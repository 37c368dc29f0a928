#pragma once

// The hash of a string that somebody outside has chosen. Its key is drawn when the process starts,
// so nobody can send names that all fall into one place of a table and make every look-up walk
// through them; std::hash of a string is the same everywhere and can be led to that. Values differ
// from process to process: never an order, never stored.

#include <cstdint>
#include <string_view>

namespace baltoro {

// SipHash-1-3 under the key of this process. Any thread.
uint64_t KeyedHash(std::string_view text);

// For std::unordered_map and std::unordered_set with keys that a client or a file chooses.
struct KeyedStringHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return KeyedHash(text); }
};

}  // namespace baltoro
