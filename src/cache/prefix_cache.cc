#include "cache/prefix_cache.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"

namespace baltoro {

PrefixCache::PrefixCache(const HashKey& secret, int32_t num_blocks)
    : secret_(secret),
      entries_(num_blocks),
      tokens_(static_cast<size_t>(num_blocks) * kBlockTokens) {
  block_of_.reserve(num_blocks);
}

Hash128 PrefixCache::Root(std::string_view salt) const {
  // A salt of any length cannot collide with a block: blocks hash exactly 272 bytes under the same
  // key, and a salt is hashed twice, through 17 bytes.
  const Hash128 inner =
      SipHash128(secret_, {reinterpret_cast<const uint8_t*>(salt.data()), salt.size()});
  std::array<uint8_t, sizeof(Hash128) + 1> bytes{};
  std::memcpy(bytes.data(), &inner, sizeof(inner));
  return SipHash128(secret_, bytes);
}

Hash128 PrefixCache::Chain(const Hash128& parent, std::span<const int32_t> tokens) const {
  BT_CHECK(tokens.size() == kBlockTokens);
  std::array<uint8_t, sizeof(Hash128) + kBlockTokens * sizeof(int32_t)> bytes;
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return SipHash128(secret_, bytes);
}

// Of another length than what the others hash.
Hash128 PrefixCache::WithPicture(const Hash128& name,
                                 int32_t begin,
                                 std::span<const uint8_t, 16> hash) const {
  std::array<uint8_t, sizeof(name) + sizeof(begin) + 16> bytes;
  std::memcpy(bytes.data(), &name, sizeof(name));
  std::memcpy(bytes.data() + sizeof(name), &begin, sizeof(begin));
  std::memcpy(bytes.data() + sizeof(name) + sizeof(begin), hash.data(), hash.size());
  return SipHash128(secret_, bytes);
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
