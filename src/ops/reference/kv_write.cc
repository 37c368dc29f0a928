#include "ops/reference/element.h"
#include "ops/reference/reference_ops.h"

namespace baltoro::reference {

void KvWrite(const OpContext&,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots) {
  BT_CHECK(latent.rank == 2 && rope.rank == 2 && slots.rank == 1);
  BT_CHECK(latent.dim(0) == slots.dim(0) && rope.dim(0) == slots.dim(0));
  BT_CHECK(latent.dim(1) + rope.dim(1) == cache.width);
  for (int64_t t = 0; t < slots.dim(0); ++t) {
    const int64_t slot = slots.as<int64_t>()[t];
    BT_CHECK(slot >= 0 && slot < cache.num_blocks * KvLayerView::kBlockTokens);
    const int64_t at = slot * cache.width;
    for (int64_t d = 0; d < latent.dim(1); ++d) {
      Store(cache.data, cache.dtype, at + d, Load(latent, t, d));
    }
    for (int64_t d = 0; d < rope.dim(1); ++d) {
      Store(cache.data, cache.dtype, at + latent.dim(1) + d, Load(rope, t, d));
    }
  }
}

}  // namespace baltoro::reference
