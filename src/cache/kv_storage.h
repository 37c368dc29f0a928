#pragma once

// The memory behind the KV blocks of one rank: [layers, num_blocks, 64, bytes of a token], one
// allocation, made once at start. Per token a normalised latent, then the rotated key. A draft
// model has one more layer of the same blocks, behind the others, with widths of its own.

#include <cstdint>

#include "base/status.h"
#include "cache/block_id.h"
#include "device/buffer.h"
#include "tensor/kv_form.h"

namespace baltoro {

struct KvLayout {
  int32_t layers = 0;
  int32_t num_blocks = 0;
  int32_t latent = 0, rope = 0;  // values of one token
  KvForm form = KvForm::kBf16;
  // Of the draft's layer, which is whole on its rank though ranks may share the blocks of others:
  // as many blocks as there are. 0: there is none.
  int32_t draft_blocks = 0, draft_latent = 0, draft_rope = 0;
  KvForm draft_form = KvForm::kBf16;

  int64_t block_bytes() const { return kBlockTokens * KvTokenBytes(form, latent, rope); }
  int64_t layer_bytes() const { return block_bytes() * num_blocks; }
  int64_t draft_block_bytes() const {
    return draft_blocks == 0 ? 0
                             : kBlockTokens * KvTokenBytes(draft_form, draft_latent, draft_rope);
  }
  int64_t bytes() const { return layer_bytes() * layers + draft_block_bytes() * draft_blocks; }
};

class KvStorage {
 public:
  // `memory` must outlive it.
  static Result<KvStorage> Create(const KvLayout& layout, const Memory& memory = HostMemory());

  const KvLayout& layout() const { return layout_; }
  // layout().layer_bytes() of them.
  void* layer(int32_t layer) const;
  void* draft_layer() const;  // of a layout that has one
  // Zeroes the block in every layer but the draft's.
  Status Clear(BlockId block);
  Status ClearDraft(BlockId block);  // in the draft's

 private:
  KvStorage(const KvLayout& layout, Buffer buffer, const Memory& memory)
      : layout_(layout), memory_(&memory), buffer_(std::move(buffer)) {}
  KvLayout layout_;
  const Memory* memory_;
  Buffer buffer_;
};

}  // namespace baltoro
