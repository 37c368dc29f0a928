#include "route/known_prefixes.h"

#include <algorithm>
#include <ranges>

namespace baltoro {

KnownPrefixes::KnownPrefixes(int64_t blocks_max)
    : blocks_max_(static_cast<size_t>(std::max<int64_t>(blocks_max, 0))) {}

int32_t KnownPrefixes::Known(std::span<const Hash128> names) const {
  const auto unknown =
      std::ranges::find_if(names, [this](const Hash128& name) { return !places_.contains(name); });
  return static_cast<int32_t>(unknown - names.begin());
}

void KnownPrefixes::Use(std::span<const Hash128> names) {
  names = names.first(std::min(names.size(), blocks_max_));
  for (const Hash128& name : names | std::views::reverse) {
    const auto [place, is_new] = places_.try_emplace(name, used_.end());
    if (is_new) {
      place->second = used_.insert(used_.begin(), name);
    } else {
      used_.splice(used_.begin(), used_, place->second);
    }
  }
  while (places_.size() > blocks_max_) {
    places_.erase(used_.back());
    used_.pop_back();
  }
}

void KnownPrefixes::Clear() {
  places_.clear();
  used_.clear();
}

}  // namespace baltoro
