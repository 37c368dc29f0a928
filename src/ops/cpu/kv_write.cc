#include <cstring>

#include "ops/cpu/element_types.h"

namespace baltoro::cpu {

void KvWrite(const OpContext& ctx,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots) {
  BT_CHECK(latent.rank == 2 && rope.rank == 2 && slots.rank == 1 && slots.dtype == DType::kI64);
  BT_CHECK(latent.dim(0) == slots.dim(0) && rope.dim(0) == slots.dim(0));
  BT_CHECK(latent.dim(1) + rope.dim(1) == cache.width);
  BT_CHECK(latent.dtype == cache.dtype && rope.dtype == cache.dtype);
  const int64_t slot_count = cache.num_blocks * KvLayerView::kBlockTokens;
  WithElement(cache.dtype, [&](auto element) {
    using Element = decltype(element);
    ForRows(ctx, slots.dim(0), cache.width, [&](int64_t t) {
      const int64_t slot = slots.as<const int64_t>()[t];
      BT_CHECK(slot >= 0 && slot < slot_count);
      auto* to = static_cast<Element*>(cache.data) + slot * cache.width;
      std::memcpy(to, latent.row<const Element>(t), latent.dim(1) * sizeof(Element));
      std::memcpy(to + latent.dim(1), rope.row<const Element>(t), rope.dim(1) * sizeof(Element));
    });
  });
}

}  // namespace baltoro::cpu
