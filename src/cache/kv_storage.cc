#include "cache/kv_storage.h"

#include <utility>

#include "base/check.h"

namespace baltoro {

Result<KvStorage> KvStorage::Create(const KvLayout& layout, const Memory& memory) {
  BT_CHECK(layout.layers > 0 && layout.num_blocks > 0 && layout.latent > 0);
  BT_ASSIGN_OR_RETURN(Buffer buffer,
                      Buffer::Create(static_cast<size_t>(layout.bytes()),
                                     "the KV cache (lower --kv-cache-memory-bytes)", memory));
  return KvStorage(layout, std::move(buffer), memory);
}

void* KvStorage::layer(int32_t layer) const {
  BT_CHECK(layer >= 0 && layer < layout_.layers);
  return static_cast<char*>(buffer_.data()) + layer * layout_.layer_bytes();
}

void* KvStorage::draft_layer() const {
  BT_CHECK(layout_.draft_blocks > 0);
  return static_cast<char*>(buffer_.data()) + layout_.layers * layout_.layer_bytes();
}

Status KvStorage::Clear(BlockId block) {
  const auto at = static_cast<int32_t>(block);
  BT_CHECK(at >= 0 && at < layout_.num_blocks);
  for (int32_t i = 0; i < layout_.layers; ++i) {
    BT_RETURN_IF_ERROR(memory_->Clear(static_cast<char*>(layer(i)) + at * layout_.block_bytes(),
                                      static_cast<size_t>(layout_.block_bytes())));
  }
  return {};
}

Status KvStorage::ClearDraft(BlockId block) {
  const auto at = static_cast<int32_t>(block);
  BT_CHECK(at >= 0 && at < layout_.draft_blocks);
  const int64_t bytes = layout_.draft_block_bytes();
  return memory_->Clear(static_cast<char*>(draft_layer()) + at * bytes, static_cast<size_t>(bytes));
}

}  // namespace baltoro
