#include "cache/prefix_cache.h"

#include <algorithm>

#include "base/check.h"

namespace baltoro {

PrefixCache::PrefixCache(const HashKey& secret, int32_t num_blocks)
    : names_(secret),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * kBlockTokens) {
  block_of_.reserve(num_blocks);
}

BlockId PrefixCache::Find(const Hash128& name, std::span<const int32_t> tokens) const {
  const auto found = block_of_.find(name);
  if (found == block_of_.end()) return BlockId{-1};
  if (!std::ranges::equal(TokensOf(found->second), tokens)) return BlockId{-1};
  return found->second;
}

bool PrefixCache::Insert(const Hash128& name, std::span<const int32_t> tokens, BlockId block) {
  BT_CHECK(tokens.size() == kBlockTokens);
  Entry& entry = entries_[static_cast<size_t>(block)];
  BT_CHECK(!entry.held);
  if (!block_of_.emplace(name, block).second) return false;
  entry = {.name = name, .held = true};
  std::ranges::copy(tokens, tokens_.begin() + static_cast<int64_t>(block) * kBlockTokens);
  return true;
}

void PrefixCache::Forget(BlockId block) {
  Entry& entry = entries_[static_cast<size_t>(block)];
  if (!entry.held) return;
  block_of_.erase(entry.name);
  entry.held = false;
}

std::span<const int32_t> PrefixCache::TokensOf(BlockId block) const {
  return std::span(tokens_).subspan(static_cast<size_t>(block) * kBlockTokens, kBlockTokens);
}

}  // namespace baltoro
