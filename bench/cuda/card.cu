#include "card.h"

#include <cuda_bf16.h>

#include "device/cuda/cuda_status.h"

namespace baltoro::bench {
namespace {

__device__ uint32_t Mix(uint32_t x) {
  x = (x ^ x >> 16) * 0x7FEB352Du;
  x = (x ^ x >> 15) * 0x846CA68Bu;
  return x ^ x >> 16;
}

__global__ void RandomBf16(uint16_t* data, size_t count, uint32_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint32_t bits =
        Mix(static_cast<uint32_t>(i) ^ Mix(seed + static_cast<uint32_t>(i >> 32)));
    const float value = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f;
    data[i] = static_cast<uint16_t>(__float_as_uint(value) >> 16);
  }
}

// By Box and Muller, of two pseudo-random numbers an element.
__global__ void NormalBf16(__nv_bfloat16* data, size_t count, uint32_t seed, float deviation) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint32_t bits =
        Mix(static_cast<uint32_t>(i) ^ Mix(seed + static_cast<uint32_t>(i >> 32)));
    const float u = (static_cast<float>(bits >> 8) + 0.5f) * 0x1p-24f;
    const float v = static_cast<float>(Mix(bits + 0x9E3779B9u) >> 8) * 0x1p-24f;
    data[i] = __float2bfloat16(deviation * sqrtf(-2 * logf(u)) * cospif(2 * v));
  }
}

__global__ void RandomE4m3(uint8_t* data, size_t count, uint32_t seed) {
  const size_t step = size_t{gridDim.x} * blockDim.x;
  for (size_t i = size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    const uint32_t bits =
        Mix(static_cast<uint32_t>(i) ^ Mix(seed + static_cast<uint32_t>(i >> 32)));
    data[i] = static_cast<uint8_t>((bits & 0x87) | (bits >> 8) % 8 << 3);
  }
}

}  // namespace

Status FillRandomBf16(void* data, size_t count, uint32_t seed, const Stream& stream) {
  RandomBf16<<<1024, 512, 0, stream.get()>>>(static_cast<uint16_t*>(data), count, seed);
  return CudaLaunchStatus("random bf16");
}

Status FillBf16(void* data, size_t count, uint32_t seed, BfloatData kind, const Stream& stream) {
  switch (kind) {
    case BfloatData::kUniform:
      return FillRandomBf16(data, count, seed, stream);
    case BfloatData::kNormal:
    case BfloatData::kSmall:
      NormalBf16<<<1024, 512, 0, stream.get()>>>(static_cast<__nv_bfloat16*>(data), count, seed,
                                                 kind == BfloatData::kNormal ? 1.0f : 0.1f);
      return CudaLaunchStatus("normal bf16");
    case BfloatData::kZeros:
      return CudaStatus(cudaMemsetAsync(data, 0, count * 2, stream.get()), "zeros");
  }
  return InvalidArgument("unknown data");
}

Status FillRandomE4m3(void* data, size_t count, uint32_t seed, const Stream& stream) {
  RandomE4m3<<<1024, 512, 0, stream.get()>>>(static_cast<uint8_t*>(data), count, seed);
  return CudaLaunchStatus("random e4m3");
}

}  // namespace baltoro::bench
