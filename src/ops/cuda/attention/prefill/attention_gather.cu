// Brings the latents of a pass out of the paged cache, as bf16 rows one after the other.

#include <cuda_bf16.h>
#include <cuda_fp8.h>

#include "ops/cuda/attention/attention_kernels.h"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 192;
constexpr int kTokens = kMlaBlockTokens;
// Tokens of a thread block: few, so that a short prompt is on all multiprocessors.
constexpr int kPart = 8;
constexpr int kChunk = 8;  // elements that a thread brings at a time
constexpr int kChunks = kMlaWidth / kChunk;
static_assert(kTokens % kPart == 0 && kPart * kChunks % kThreads == 0);

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
  constexpr int kParts = kTokens / kPart, kEach = kPart * kChunks / kThreads;
  const int block = static_cast<int>(blockIdx.x) / kParts;
  const int part = static_cast<int>(blockIdx.x) % kParts * kPart;
  const int64_t first = int64_t{sources[block]} * kTokens + part;
  const int count = valid[block] - part;
  hopper::WaitForPredecessors();  // sources and counts are the host's, older than that
  hopper::LetDependentsLaunch();
  uint4* const to = out + int64_t{blockIdx.x} * kPart * kChunks;
  uint4 values[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const int i = static_cast<int>(threadIdx.x) + n * kThreads, token = i / kChunks;
    // The cache's first token for those that are not there: no load waits for a condition.
    const unsigned char* const from = cache + (token < count ? (first + token) * kTokenBytes : 0);
    values[n] = Load<kForm>(from, i % kChunks, scale);
    if (token >= count) values[n] = make_uint4(0, 0, 0, 0);
  }
#pragma unroll
  for (int n = 0; n < kEach; ++n) to[threadIdx.x + n * kThreads] = values[n];
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
                         const LaunchStream& stream) {
  auto* const kernel = cache.form == KvForm::kBf16  ? GatherKernel<KvForm::kBf16>
                       : cache.form == KvForm::kFp8 ? GatherKernel<KvForm::kFp8>
                                                    : GatherKernel<KvForm::kFp8Groups>;
  LaunchAhead("attention gather", stream, kernel,
              dim3(static_cast<unsigned>(blocks * (kTokens / kPart))), kThreads,
              static_cast<uint4*>(out), static_cast<const unsigned char*>(cache.data), cache.scale,
              sources, valid);
}

void LaunchFillPositions(int32_t* positions,
                         int64_t sequences,
                         int64_t width,
                         int64_t stride,
                         const LaunchStream& stream) {
  FillPositionsKernel<<<static_cast<unsigned>(sequences), kThreads, 0, stream>>>(
      positions, static_cast<int>(width), stride);
  stream.order->AddPlain("attention positions");
  CheckLaunch("attention positions");
}

}  // namespace baltoro::cuda
