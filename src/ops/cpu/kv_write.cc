#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/cpu/element_types.h"
#include "tensor/float8.h"

namespace baltoro::cpu {
namespace {

template <typename Element>
void WritePlain(char* to, const KvLayerView& cache, const Element* latent, const Element* rope) {
  if (cache.form == PlainKvForm(sizeof(Element) == 4 ? DType::kF32 : DType::kBf16)) {
    std::memcpy(to, latent, cache.latent * sizeof(Element));
    std::memcpy(to + cache.latent * sizeof(Element), rope, cache.rope * sizeof(Element));
    return;
  }
  BT_CHECK(cache.form == KvForm::kBf16);  // narrowed; wider than the activations it never is
  auto* narrow = reinterpret_cast<Bf16*>(to);
  for (int64_t d = 0; d < cache.latent; ++d) Narrow(Widen(latent[d]), narrow[d]);
  for (int64_t d = 0; d < cache.rope; ++d) Narrow(Widen(rope[d]), narrow[cache.latent + d]);
}

template <typename Element>
void Quantise(uint8_t* to, const Element* from, float scale, int64_t count) {
  for (int64_t d = 0; d < count; ++d) to[d] = ToE4M3(Widen(from[d]) / scale);
}

template <typename Element>
void WriteGroups(uint8_t* to,
                 const KvLayerView& cache,
                 const Element* latent,
                 const Element* rope) {
  uint8_t* scales = to + cache.latent;
  for (int64_t begin = 0; begin < cache.latent; begin += kKvGroup, scales += sizeof(float)) {
    const int64_t count = std::min(kKvGroup, cache.latent - begin);
    float largest = 0;
    for (int64_t d = 0; d < count; ++d) {
      largest = std::max(largest, std::abs(Widen(latent[begin + d])));
    }
    const float scale = KvGroupScale(largest);
    Quantise(to + begin, latent + begin, scale, count);
    std::memcpy(scales, &scale, sizeof(scale));
  }
  for (int64_t d = 0; d < cache.rope; ++d) {
    Bf16 value;
    Narrow(Widen(rope[d]), value);
    std::memcpy(scales + d * sizeof(value), &value, sizeof(value));
  }
}

}  // namespace

void KvWrite(const OpContext& ctx,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots) {
  BT_CHECK(latent.rank == 2 && rope.rank == 2 && slots.rank == 1 && slots.dtype == DType::kI64);
  BT_CHECK(latent.dim(0) == slots.dim(0) && rope.dim(0) == slots.dim(0));
  BT_CHECK(latent.dim(1) == cache.latent && rope.dim(1) == cache.rope);
  BT_CHECK(latent.dtype == rope.dtype && cache.scale > 0);
  const int64_t slot_count = cache.num_blocks * KvLayerView::kBlockTokens;
  WithElement(latent.dtype, [&](auto element) {
    using Element = decltype(element);
    ForRows(ctx, slots.dim(0), cache.latent + cache.rope, [&](int64_t t) {
      const int64_t slot = slots.as<const int64_t>()[t];
      if (slot < 0) return;
      BT_CHECK(slot < slot_count);
      char* to = static_cast<char*>(cache.data) + slot * cache.token_bytes();
      auto* codes = reinterpret_cast<uint8_t*>(to);
      const auto* from = latent.row<const Element>(t);
      const auto* key = rope.row<const Element>(t);
      switch (cache.form) {
        case KvForm::kF32:
        case KvForm::kBf16:
          WritePlain(to, cache, from, key);
          break;
        case KvForm::kFp8:
          Quantise(codes, from, cache.scale, cache.latent);
          Quantise(codes + cache.latent, key, cache.scale, cache.rope);
          break;
        case KvForm::kFp8Groups:
          WriteGroups(codes, cache, from, key);
          break;
      }
    });
  });
}

}  // namespace baltoro::cpu
