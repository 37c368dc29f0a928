// Brings the latents of a pass out of the paged cache, as bf16 rows one after the other.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ops/cuda/attention_kernels.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/hopper.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTokens = kMlaBlockTokens;
constexpr int kChunk = 8;  // elements that a thread brings at a time
constexpr int kChunks = kMlaWidth / kChunk;

// 8 e4m3 codes times a scale, to bf16.
__device__ uint4 Widen(uint2 codes, float scale) {
  uint32_t wide[4];
  const uint32_t words[2] = {codes.x, codes.y};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const auto pair = static_cast<__nv_fp8x2_storage_t>(words[i / 2] >> (16 * (i % 2)));
    const __half2 halves = __half2(__nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3));
    const float2 values = __half22float2(halves);
    wide[i] = hopper::PackBf16(values.x * scale, values.y * scale);
  }
  return make_uint4(wide[0], wide[1], wide[2], wide[3]);
}

// Chunk `chunk` of the token whose bytes begin at `token`.
template <KvForm kForm>
__device__ uint4 Load(const unsigned char* token, int chunk, float scale) {
  if constexpr (kForm == KvForm::kBf16) {
    return *reinterpret_cast<const uint4*>(token + chunk * 16);
  } else if constexpr (kForm == KvForm::kFp8) {
    return Widen(*reinterpret_cast<const uint2*>(token + chunk * 8), scale);
  } else {
    constexpr int kLatentChunks = kMlaLatent / kChunk;
    constexpr int kScalesAt = kMlaLatent;
    constexpr int kRopeAt = kScalesAt + static_cast<int>(KvGroups(kMlaLatent)) * 4;
    if (chunk >= kLatentChunks) {
      return *reinterpret_cast<const uint4*>(token + kRopeAt + (chunk - kLatentChunks) * 16);
    }
    const auto group = chunk * kChunk / static_cast<int>(kKvGroup);
    return Widen(*reinterpret_cast<const uint2*>(token + chunk * 8),
                 *reinterpret_cast<const float*>(token + kScalesAt + group * 4));
  }
}

template <KvForm kForm>
__global__ void __launch_bounds__(kThreads) GatherKernel(uint4* out,
                                                         const unsigned char* cache,
                                                         float scale,
                                                         const int32_t* sources,
                                                         const int32_t* valid) {
  constexpr int64_t kTokenBytes = KvTokenBytes(kForm, kMlaLatent, kAttentionRope);
  const int block = blockIdx.x;
  const int64_t first = int64_t{sources[block]} * kTokens;
  const int count = valid[block];
  uint4* const to = out + int64_t{block} * kTokens * kChunks;
#pragma unroll 6
  for (int i = threadIdx.x; i < kTokens * kChunks; i += kThreads) {
    const int token = i / kChunks;
    uint4 value = make_uint4(0, 0, 0, 0);
    if (token < count) {
      value = Load<kForm>(cache + (first + token) * kTokenBytes, i % kChunks, scale);
    }
    to[i] = value;
  }
}

__global__ void FillPositionsKernel(int32_t* positions, int width, int64_t stride) {
  for (int b = threadIdx.x; b < width; b += blockDim.x) {
    positions[blockIdx.x * stride + b] = b * kTokens;
  }
}

}  // namespace

void LaunchGatherLatents(void* out,
                         const KvLayerView& cache,
                         const int32_t* sources,
                         const int32_t* valid,
                         int64_t blocks,
                         cudaStream_t stream) {
  auto* const kernel = cache.form == KvForm::kBf16  ? GatherKernel<KvForm::kBf16>
                       : cache.form == KvForm::kFp8 ? GatherKernel<KvForm::kFp8>
                                                    : GatherKernel<KvForm::kFp8Groups>;
  kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(
      static_cast<uint4*>(out), static_cast<const unsigned char*>(cache.data), cache.scale, sources,
      valid);
  CheckLaunch("attention gather");
}

void LaunchFillPositions(
    int32_t* positions, int64_t sequences, int64_t width, int64_t stride, cudaStream_t stream) {
  FillPositionsKernel<<<static_cast<unsigned>(sequences), kThreads, 0, stream>>>(
      positions, static_cast<int>(width), stride);
  CheckLaunch("attention positions");
}

}  // namespace baltoro::cuda
