#pragma once

// Names of the blocks of a prefix: a keyed hash of a block's 64 token ids, of the pictures in it,
// and of the name of the block before it; the first block's parent is the salt. The hash key is a
// secret of the process. Any thread.

#include <cstdint>
#include <span>
#include <string_view>

#include "cache/keyed_hash.h"

namespace baltoro {

class PrefixNames {
 public:
  explicit PrefixNames(const HashKey& secret) : secret_(secret) {}

  // The name above the first block of a prefix under `salt`.
  Hash128 Root(std::string_view salt) const;
  // The name of the block of these 64 `tokens` after `parent`.
  Hash128 Chain(const Hash128& parent, std::span<const int32_t> tokens) const;
  // That of a block called `name` otherwise, where from token `begin` of it on (below 0: before it)
  // a picture stands, whose hash this is.
  Hash128 WithPicture(const Hash128& name, int32_t begin, std::span<const uint8_t, 16> hash) const;

 private:
  HashKey secret_;
};

// For tables: a name is a keyed hash already.
struct PrefixNameHash {
  size_t operator()(const Hash128& name) const { return name.low; }
};

}  // namespace baltoro
