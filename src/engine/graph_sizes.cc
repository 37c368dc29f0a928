#include "engine/graph_sizes.h"

#include <algorithm>

namespace baltoro {

std::vector<int32_t> GraphSizes(int32_t most) {
  constexpr int32_t kMost = 512;
  std::vector<int32_t> sizes;
  const int32_t last = std::min(most, kMost);
  for (int32_t size = 1; size < last; size += size < 4     ? size
                                              : size < 8   ? 4
                                              : size < 256 ? 8
                                                           : 16) {
    sizes.push_back(size);
  }
  if (last > 0) sizes.push_back(last);
  return sizes;
}

std::vector<int32_t> GraphSizes(std::vector<int32_t> asked, int32_t most) {
  std::erase_if(asked, [most](int32_t size) { return size < 1 || size > most; });
  std::ranges::sort(asked);
  asked.erase(std::unique(asked.begin(), asked.end()), asked.end());
  return asked;
}

int32_t GraphSizeFor(const std::vector<int32_t>& sizes, int32_t size) {
  const auto found = std::ranges::lower_bound(sizes, size);
  return found == sizes.end() ? size : *found;
}

}  // namespace baltoro
