#include "flags/near_word.h"

#include <algorithm>

namespace baltoro {
namespace {

constexpr size_t kLengthMax = 64;  // longer than any flag of ours

// Insertions, deletions, substitutions and swaps of neighbours that lead from a to b.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> cost(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t change = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::string NearWord(std::string_view word, const std::vector<std::string_view>& words) {
  if (word.size() < 2 || word.size() > kLengthMax) return "";
  // More than these changes, or one for each letter but one, make another word of it.
  size_t best = std::min(std::max<size_t>(2, word.size() / 4) + 1, word.size() - 1);
  std::string_view found;
  for (const std::string_view each : words) {
    const size_t distance = EditDistance(word, each);
    if (distance >= best) continue;
    best = distance;
    found = each;
  }
  if (!found.empty()) return std::string(found);
  const auto begins = std::find_if(words.begin(), words.end(), [&](std::string_view each) {
    return !each.empty() && (each.starts_with(word) || word.starts_with(each));
  });
  return begins == words.end() ? "" : std::string(*begins);
}

}  // namespace baltoro
