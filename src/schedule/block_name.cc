#include "schedule/block_name.h"

#include <algorithm>

#include "cache/block_id.h"

namespace baltoro {

std::span<const RequestPicture>::iterator FirstBehind(std::span<const RequestPicture> pictures,
                                                      int32_t position) {
  return std::ranges::partition_point(pictures, [position](const RequestPicture& picture) {
    return picture.begin + picture.count <= position;
  });
}

Hash128 NamePictures(const PrefixNames& names,
                     std::span<const RequestPicture> pictures,
                     int32_t block,
                     Hash128 name) {
  const int32_t first = block * kBlockTokens;
  const int32_t end = first + kBlockTokens;
  for (auto one = FirstBehind(pictures, first); one != pictures.end() && one->begin < end; ++one) {
    name = names.WithPicture(name, one->begin - first, one->hash);
  }
  return name;
}

std::vector<Hash128> NamePrompt(const PrefixNames& names, const Request& request) {
  const std::span<const TokenId> prompt(request.prompt);
  std::vector<Hash128> out;
  if (prompt.empty()) return out;
  const auto blocks = static_cast<int32_t>((prompt.size() - 1) / kBlockTokens);
  out.reserve(static_cast<size_t>(blocks));
  Hash128 parent = names.Root(request.cache_salt);
  for (int32_t block = 0; block < blocks; ++block) {
    const auto tokens = prompt.subspan(static_cast<size_t>(block) * kBlockTokens, kBlockTokens);
    parent = NamePictures(names, request.pictures, block, names.Chain(parent, tokens));
    out.push_back(parent);
  }
  return out;
}

}  // namespace baltoro
