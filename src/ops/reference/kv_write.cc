#include <algorithm>
#include <cmath>
#include <cstring>

#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"
#include "tensor/float8.h"

namespace baltoro::reference {
namespace {

// One token of kFp8Groups.
void WriteGroups(
    uint8_t* to, const TensorView& latent, const TensorView& rope, int64_t t, int64_t groups) {
  const int64_t width = latent.dim(1);
  for (int64_t group = 0; group < groups; ++group) {
    const int64_t end = std::min(width, (group + 1) * kKvGroup);
    float largest = 0;
    for (int64_t d = group * kKvGroup; d < end; ++d) {
      largest = std::max(largest, std::abs(Load(latent, t, d)));
    }
    const float scale = KvGroupScale(largest);
    for (int64_t d = group * kKvGroup; d < end; ++d) to[d] = ToE4M3(Load(latent, t, d) / scale);
    std::memcpy(to + width + group * 4, &scale, sizeof(scale));
  }
  for (int64_t d = 0; d < rope.dim(1); ++d) {
    const Bf16 value = ToBf16(Load(rope, t, d));
    std::memcpy(to + width + groups * 4 + d * 2, &value, sizeof(value));
  }
}

}  // namespace

void KvWrite(const OpContext&,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots) {
  BT_CHECK(latent.rank == 2 && rope.rank == 2 && slots.rank == 1);
  BT_CHECK(latent.dim(0) == slots.dim(0) && rope.dim(0) == slots.dim(0));
  BT_CHECK(latent.dim(1) == cache.latent && rope.dim(1) == cache.rope);
  BT_CHECK(cache.scale > 0);
  const int64_t width = cache.latent + cache.rope;
  const auto value = [&](int64_t t, int64_t d) {
    return d < cache.latent ? Load(latent, t, d) : Load(rope, t, d - cache.latent);
  };
  for (int64_t t = 0; t < slots.dim(0); ++t) {
    const int64_t slot = slots.as<int64_t>()[t];
    if (slot < 0) continue;
    BT_CHECK(slot < cache.num_blocks * KvLayerView::kBlockTokens);
    auto* to = static_cast<uint8_t*>(cache.data) + slot * cache.token_bytes();
    switch (cache.form) {
      case KvForm::kF32:
        for (int64_t d = 0; d < width; ++d) Store(to, DType::kF32, d, value(t, d));
        break;
      case KvForm::kBf16:
        for (int64_t d = 0; d < width; ++d) Store(to, DType::kBf16, d, value(t, d));
        break;
      case KvForm::kFp8:
        for (int64_t d = 0; d < width; ++d) to[d] = ToE4M3(value(t, d) / cache.scale);
        break;
      case KvForm::kFp8Groups:
        WriteGroups(to, latent, rope, t, KvGroups(cache.latent));
        break;
    }
  }
}

}  // namespace baltoro::reference
