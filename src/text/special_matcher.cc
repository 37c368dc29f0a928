#include "text/special_matcher.h"

#include <algorithm>

#include "base/check.h"

namespace baltoro {

SpecialMatcher::SpecialMatcher(std::vector<std::pair<std::string, int32_t>> names)
    : names_(std::move(names)) {
  std::sort(names_.begin(), names_.end());
  for (const auto& [name, id] : names_) {
    BT_CHECK(!name.empty());
    starts_a_name_[static_cast<unsigned char>(name[0])] = true;
  }
}

SpecialMatcher::Match SpecialMatcher::Next(std::string_view text, size_t from) const {
  for (size_t i = from; i < text.size(); ++i) {
    if (!starts_a_name_[static_cast<unsigned char>(text[i])]) continue;
    const Match match = LongestAt(text, i);
    if (match.length > 0) return match;
  }
  return {.start = text.size()};
}

// Narrows the sorted names, byte by byte, to those that begin as the text does. The shortest of
// them comes first, so a name that ends here is always the first of the range.
SpecialMatcher::Match SpecialMatcher::LongestAt(std::string_view text, size_t start) const {
  Match best{.start = text.size()};
  auto low = names_.begin();
  auto high = names_.end();
  for (size_t depth = 0; start + depth < text.size(); ++depth) {
    const auto byte = static_cast<unsigned char>(text[start + depth]);
    const auto at_depth = [depth](const auto& name) {
      return static_cast<unsigned char>(name.first[depth]);
    };
    low = std::partition_point(low, high, [&](const auto& name) { return at_depth(name) < byte; });
    high =
        std::partition_point(low, high, [&](const auto& name) { return at_depth(name) <= byte; });
    if (low == high) break;
    if (low->first.size() == depth + 1) {
      best = {start, depth + 1, low->second};
      ++low;  // the others are longer
      if (low == high) break;
    }
  }
  return best;
}

}  // namespace baltoro
