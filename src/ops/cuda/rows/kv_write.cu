// One block a token, or several where it is wide: the first warps hold its latents, eight a thread,
// the last ones its key.

#include <algorithm>

#include "ops/cuda/rows/kv_write_device.cuh"

namespace baltoro::cuda {
namespace {

struct WriteParams {
  KvTarget cache;
  const __nv_bfloat16 *latent, *rope;
  int64_t latent_stride, rope_stride;
  const int64_t* slots;
  int latent_threads;  // whole warps
  bool vectors;
};

constexpr int kThreadsMax = 1024;

__global__ void __launch_bounds__(kThreadsMax) KvWriteKernel(WriteParams p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int64_t row = blockIdx.x;
  uint8_t* const token = TokenAt(p.cache, p.slots[row]);
  float x[kEight];
  const int thread = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  if (thread < p.latent_threads) {
    const int at = thread * kEight;
    LoadEight(p.latent + row * p.latent_stride + at, p.cache.latent - at, p.vectors, x);
    StoreLatents(p.cache, token, at, x);
  } else {
    const int at = (thread - p.latent_threads) * kEight;
    LoadEight(p.rope + row * p.rope_stride + at, p.cache.rope - at, p.vectors, x);
    StoreKey(p.cache, token, at, x);
  }
}

int WholeWarps(int64_t width) {
  return (Eights(width) + 31) / 32 * 32;
}

}  // namespace

KvTarget KvTarget::Of(const KvLayerView& cache) {
  const bool groups = cache.form == KvForm::kFp8Groups;
  const int64_t element = cache.form == KvForm::kF32 ? 4 : cache.form == KvForm::kBf16 ? 2 : 1;
  const int64_t key_offset = element * cache.latent + (groups ? 4 * KvGroups(cache.latent) : 0);
  const bool aligned = reinterpret_cast<uintptr_t>(cache.data) % 16 == 0;
  return {.data = static_cast<uint8_t*>(cache.data),
          .slots = cache.num_blocks * KvLayerView::kBlockTokens,
          .token_bytes = cache.token_bytes(),
          .key_offset = key_offset,
          .form = cache.form,
          .latent = static_cast<int>(cache.latent),
          .rope = static_cast<int>(cache.rope),
          .scale = cache.scale,
          .vectors = aligned && cache.token_bytes() % 16 == 0 && key_offset % 16 == 0 &&
                     cache.latent % 4 == 0};
}

void KvWrite(const OpContext& ctx,
             const KvLayerView& cache,
             TensorView latent,
             TensorView rope,
             TensorView slots) {
  BT_CHECK(latent.rank == 2 && rope.rank == 2 && slots.rank == 1);
  BT_CHECK(latent.dim(0) == slots.dim(0) && rope.dim(0) == slots.dim(0));
  BT_CHECK(latent.dim(1) == cache.latent && rope.dim(1) == cache.rope);
  BT_CHECK(latent.dtype == DType::kBf16 && rope.dtype == DType::kBf16);
  BT_CHECK(slots.dtype == DType::kI64 && cache.scale > 0);
  if (slots.dim(0) == 0) return;
  const int latent_threads = WholeWarps(cache.latent);
  const int threads = latent_threads + WholeWarps(cache.rope);
  const WriteParams p = {.cache = KvTarget::Of(cache),
                         .latent = static_cast<const __nv_bfloat16*>(latent.data),
                         .rope = static_cast<const __nv_bfloat16*>(rope.data),
                         .latent_stride = latent.stride[0],
                         .rope_stride = rope.stride[0],
                         .slots = slots.as<int64_t>(),
                         .latent_threads = latent_threads,
                         .vectors = InVectors(latent) && InVectors(rope)};
  const dim3 grid(static_cast<unsigned>(slots.dim(0)),
                  static_cast<unsigned>((threads + kThreadsMax - 1) / kThreadsMax));
  LaunchAhead("kv write", StreamOf(ctx), KvWriteKernel, grid, std::min(threads, kThreadsMax), p);
}

}  // namespace baltoro::cuda
