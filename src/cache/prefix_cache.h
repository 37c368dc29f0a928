#pragma once

// Which full blocks of which prefixes are in the KV cache, by their names (prefix_names.h). The
// token ids are compared on every hit too, so that nobody can make one prefix pass for another.
//
// It owns no block: the BlockPool says who does. A block stays findable after its last owner left,
// until the pool hands it out again and the scheduler calls Forget(). Because a sequence owns
// all blocks of its prefix, and gives them back leaf first, a leaf is reused before its parent.
//
// Engine thread only.

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/block_id.h"
#include "cache/prefix_names.h"

namespace baltoro {

class PrefixCache {
 public:
  PrefixCache(const HashKey& secret, int32_t num_blocks);

  const PrefixNames& names() const { return names_; }

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
  std::span<const int32_t> TokensOf(BlockId block) const;

  PrefixNames names_;
  std::vector<Entry> entries_;   // [num_blocks]
  std::vector<int32_t> tokens_;  // [num_blocks, 64]
  std::unordered_map<Hash128, BlockId, PrefixNameHash> block_of_;
};

}  // namespace baltoro
