#include "cache/prefix_names.h"

#include <array>
#include <cstring>

#include "base/check.h"
#include "cache/block_id.h"

namespace baltoro {

Hash128 PrefixNames::Root(std::string_view salt) const {
  // A salt of any length cannot collide with a block: blocks hash exactly 272 bytes under the same
  // key, and a salt is hashed twice, through 17 bytes.
  const Hash128 inner =
      SipHash128(secret_, {reinterpret_cast<const uint8_t*>(salt.data()), salt.size()});
  std::array<uint8_t, sizeof(Hash128) + 1> bytes{};
  std::memcpy(bytes.data(), &inner, sizeof(inner));
  return SipHash128(secret_, bytes);
}

Hash128 PrefixNames::Chain(const Hash128& parent, std::span<const int32_t> tokens) const {
  BT_CHECK(tokens.size() == kBlockTokens);
  std::array<uint8_t, sizeof(Hash128) + kBlockTokens * sizeof(int32_t)> bytes;
  std::memcpy(bytes.data(), &parent, sizeof(parent));
  std::memcpy(bytes.data() + sizeof(parent), tokens.data(), tokens.size_bytes());
  return SipHash128(secret_, bytes);
}

// Of another length than what the others hash.
Hash128 PrefixNames::WithPicture(const Hash128& name,
                                 int32_t begin,
                                 std::span<const uint8_t, 16> hash) const {
  std::array<uint8_t, sizeof(name) + sizeof(begin) + 16> bytes;
  std::memcpy(bytes.data(), &name, sizeof(name));
  std::memcpy(bytes.data() + sizeof(name), &begin, sizeof(begin));
  std::memcpy(bytes.data() + sizeof(name) + sizeof(begin), hash.data(), hash.size());
  return SipHash128(secret_, bytes);
}

}  // namespace baltoro
