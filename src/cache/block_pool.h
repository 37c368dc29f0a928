#pragma once

// Who owns which KV block. A fixed number of blocks, each with a count of owners; blocks without an
// owner wait in one free list, in the order in which they may be reused: blocks whose contents are
// worth nothing first, then the one unused for longest. Until it is reused, a free block keeps its
// contents and can be taken back with Share().
//
// Owned by the scheduler; engine thread only.

#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_id.h"

namespace baltoro {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  // Appends `count` blocks with one owner each to `out` and returns true; or changes nothing and
  // returns false. The caller must forget what it believed of their contents.
  [[nodiscard]] bool Allocate(int32_t count, std::vector<BlockId>& out);
  // One more owner; a free block leaves the free list with its contents.
  void Share(BlockId block);
  // One owner less. The last owner's release frees the block: `keep` puts it behind all other free
  // blocks, otherwise it is the next to be reused. To free a chain leaf first, release it in
  // reverse.
  void Release(BlockId block, bool keep);

  int32_t num_blocks() const { return static_cast<int32_t>(owners_.size()); }
  int32_t num_free() const { return num_free_; }
  int32_t owners(BlockId block) const { return owners_[static_cast<size_t>(block)]; }
  // Free blocks, next to be reused first. For tests and tools: walks the list.
  std::vector<BlockId> FreeList() const;

 private:
  // The free list is a ring through an extra node at the end: links_[num_blocks] is its head.
  struct Link {
    int32_t previous, next;
  };
  void InsertBefore(int32_t node, int32_t block);
  void Unlink(int32_t block);
  int32_t head() const { return num_blocks(); }

  std::vector<int32_t> owners_;
  std::vector<Link> links_;
  int32_t num_free_ = 0;
};

}  // namespace baltoro
