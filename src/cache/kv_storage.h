#pragma once

// The memory behind the KV blocks of one rank: [layers, num_blocks, 64, bytes of a token], one
// allocation, made once at start. Per token a normalised latent, then the rotated key.

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

  int64_t block_bytes() const { return kBlockTokens * KvTokenBytes(form, latent, rope); }
  int64_t layer_bytes() const { return block_bytes() * num_blocks; }
  int64_t bytes() const { return layer_bytes() * layers; }
};

class KvStorage {
 public:
  // `memory` must outlive it.
  static Result<KvStorage> Create(const KvLayout& layout, const Memory& memory = HostMemory());

  const KvLayout& layout() const { return layout_; }
  // layout().layer_bytes() of them.
  void* layer(int32_t layer) const;
  // Zeroes the block in every layer.
  Status Clear(BlockId block);

 private:
  KvStorage(const KvLayout& layout, Buffer buffer, const Memory& memory)
      : layout_(layout), memory_(&memory), buffer_(std::move(buffer)) {}
  KvLayout layout_;
  const Memory* memory_;
  Buffer buffer_;
};

}  // namespace baltoro
