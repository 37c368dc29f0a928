#pragma once

// Which full blocks of which prefixes are in the KV cache. A block is named by a keyed hash of its
// 64 token ids and of the name of the block before it; the first block's parent is the salt. The
// hash key is a secret of the process, and the token ids are compared on every hit, so that nobody
// can make one prefix pass for another.
//
// It owns no block: the BlockPool says who does. A block stays findable after its last owner left,
// until the pool hands it out again and the scheduler calls Forget(). Because a sequence owns
// all blocks of its prefix, and gives them back leaf first, a leaf is reused before its parent.
//
// Engine thread only.

#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cache/block_id.h"
#include "cache/keyed_hash.h"

namespace baltoro {

class PrefixCache {
 public:
  PrefixCache(const HashKey& secret, int32_t num_blocks);

  // The name above the first block of a prefix under `salt`.
  Hash128 Root(std::string_view salt) const;
  // The name of the block of these 64 `tokens` after `parent`.
  Hash128 Chain(const Hash128& parent, std::span<const int32_t> tokens) const;
  // That of a block called `name` otherwise, where from token `begin` of it on (below 0: before it)
  // a picture stands, whose hash this is.
  Hash128 WithPicture(const Hash128& name, int32_t begin, std::span<const uint8_t, 16> hash) const;

  // The cached block of that name, if its tokens are these; otherwise BlockId{-1}.
  BlockId Find(const Hash128& name, std::span<const int32_t> tokens) const;
  // Makes a block findable. All its positions must be computed. False, and nothing changes, if
  // another block has the name already.
  bool Insert(const Hash128& name, std::span<const int32_t> tokens, BlockId block);
  // The block's contents are about to be overwritten, or must not be used again. No-op if it is not
  // cached.
  void Forget(BlockId block);

  bool Holds(BlockId block) const { return entries_[static_cast<size_t>(block)].held; }
  int32_t size() const { return static_cast<int32_t>(block_of_.size()); }

 private:
  struct Entry {
    Hash128 name;
    bool held = false;
  };
  struct NameHash {
    // The name is a keyed hash already.
    size_t operator()(const Hash128& name) const { return name.low; }
  };
  std::span<const int32_t> TokensOf(BlockId block) const;

  HashKey secret_;
  std::vector<Entry> entries_;   // [num_blocks]
  std::vector<int32_t> tokens_;  // [num_blocks, 64]
  std::unordered_map<Hash128, BlockId, NameHash> block_of_;
};

}  // namespace baltoro
