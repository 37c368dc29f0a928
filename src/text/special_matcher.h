#pragma once

// Finds the names of added tokens in text, all names at once. Immutable; any thread may use it.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baltoro {

class SpecialMatcher {
 public:
  SpecialMatcher() = default;
  explicit SpecialMatcher(std::vector<std::pair<std::string, int32_t>> names);

  struct Match {
    size_t start = 0;
    size_t length = 0;  // 0: there is none, and start is the end of the text
    int32_t id = -1;
  };

  // The first name at or after `from`; of several at one place, the longest. Costs at most the
  // longest name's length per byte, and one table look-up for nearly all.
  Match Next(std::string_view text, size_t from) const;

 private:
  Match LongestAt(std::string_view text, size_t start) const;

  std::vector<std::pair<std::string, int32_t>> names_;  // sorted
  bool starts_a_name_[256] = {};                        // by first byte
};

}  // namespace baltoro
