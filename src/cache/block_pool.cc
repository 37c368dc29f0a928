#include "cache/block_pool.h"

#include "base/check.h"

namespace baltoro {

BlockPool::BlockPool(int32_t num_blocks) {
  BT_CHECK(num_blocks >= 0);
  owners_.assign(num_blocks, 0);
  links_.resize(num_blocks + 1);
  links_[num_blocks] = {num_blocks, num_blocks};
  for (int32_t block = 0; block < num_blocks; ++block) InsertBefore(head(), block);
  num_free_ = num_blocks;
}

bool BlockPool::Allocate(int32_t count, std::vector<BlockId>& out) {
  BT_CHECK(count >= 0);
  if (count > num_free_) return false;
  for (int32_t i = 0; i < count; ++i) {
    const int32_t block = links_[head()].next;
    Unlink(block);
    owners_[block] = 1;
    out.push_back(BlockId{block});
  }
  num_free_ -= count;
  return true;
}

void BlockPool::Share(BlockId block) {
  const auto i = static_cast<int32_t>(block);
  BT_CHECK(i >= 0 && i < num_blocks());
  if (owners_[i]++ == 0) {
    Unlink(i);
    --num_free_;
  }
}

void BlockPool::Release(BlockId block, bool keep) {
  const auto i = static_cast<int32_t>(block);
  BT_CHECK(i >= 0 && i < num_blocks());
  BT_CHECK(owners_[i] > 0);
  if (--owners_[i] > 0) return;
  InsertBefore(keep ? head() : links_[head()].next, i);
  ++num_free_;
}

std::vector<BlockId> BlockPool::FreeList() const {
  std::vector<BlockId> list;
  for (int32_t i = links_[head()].next; i != head(); i = links_[i].next) list.push_back(BlockId{i});
  return list;
}

void BlockPool::InsertBefore(int32_t node, int32_t block) {
  const int32_t previous = links_[node].previous;
  links_[block] = {previous, node};
  links_[previous].next = block;
  links_[node].previous = block;
}

void BlockPool::Unlink(int32_t block) {
  const Link link = links_[block];
  links_[link.previous].next = link.next;
  links_[link.next].previous = link.previous;
}

}  // namespace baltoro
