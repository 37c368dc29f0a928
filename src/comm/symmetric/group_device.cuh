#pragma once

// What both forms of a group's exchange do with elements. Device code only.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "comm/symmetric/group_exchange.h"
#include "comm/symmetric/lanes_device.cuh"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {

// 16 bytes, or the first `count` of them; an even number.
__device__ inline uint4 LoadBytes(const char* from, int64_t count) {
  const bool vectors = reinterpret_cast<uintptr_t>(from) % kPacketBytes == 0;
  return LoadElements(reinterpret_cast<const uint16_t*>(from),
                      static_cast<int>(min(count, int64_t{kPacketBytes}) / 2), vectors);
}
__device__ inline void StoreBytes(char* to, int64_t count, const uint4& packet) {
  StoreElements(reinterpret_cast<uint16_t*>(to),
                static_cast<int>(min(count, int64_t{kPacketBytes}) / 2), packet);
}

// The conversion gives one NaN only, which is data.
__device__ inline uint4 PackEight(const float (&x)[kEight]) {
  return make_uint4(hopper::PackBf16(x[0], x[1]), hopper::PackBf16(x[2], x[3]),
                    hopper::PackBf16(x[4], x[5]), hopper::PackBf16(x[6], x[7]));
}
__device__ inline void AddEight(const uint4& packet, float (&sum)[kEight]) {
  const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum[2 * i] += __uint_as_float(words[i] << 16);
    sum[2 * i + 1] += __uint_as_float(words[i] & 0xFFFF0000u);
  }
}

template <typename T>
__device__ uint4 LoadPart(const T* from, int64_t count, bool vectors) {
  float x[kEight];
  LoadEight(from, static_cast<int>(min(count, int64_t{kEight})), vectors, x);
  return PackEight(x);
}

// to += the parts in the order of the ranks.
template <int kRanks, typename T>
__device__ void AddParts(
    T* to, int64_t count, bool vectors, const uint4 (&parts)[kRanks], int ranks) {
  float sum[kEight] = {}, x[kEight];
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank < ranks) AddEight(parts[rank], sum);
  }
  const int held = static_cast<int>(min(count, int64_t{kEight}));
  LoadEight(to, held, vectors, x);
#pragma unroll
  for (int i = 0; i < kEight; ++i) x[i] += sum[i];
  StoreEight(to, held, vectors, x);
}

// Calls `run` with the number of ranks that a kernel is made for, and the types of own and all.
template <typename Run>
void ForRanks(int ranks, const Run& run) {
  if (ranks <= 2) return run(std::integral_constant<int, 2>());
  if (ranks <= 4) return run(std::integral_constant<int, 4>());
  run(std::integral_constant<int, kPeersMax>());
}
template <typename Run>
void ForTypes(bool own_bf16, bool all_bf16, const Run& run) {
  if (own_bf16)
    return all_bf16 ? run(__nv_bfloat16(), __nv_bfloat16()) : run(__nv_bfloat16(), float());
  all_bf16 ? run(float(), __nv_bfloat16()) : run(float(), float());
}

// Calls `visit` with each of what ForRanks and ForTypes give.
template <typename Visit>
void ForAll(const Visit& visit) {
  for (const int ranks : {2, 4, kPeersMax}) {
    ForRanks(ranks, [&](auto most) {
      for (const bool own : {false, true}) {
        for (const bool all : {false, true}) {
          ForTypes(own, all, [&](auto x, auto y) { visit(most, x, y); });
        }
      }
    });
  }
}
// Loads a kernel, unless an earlier one has failed.
template <typename Kernel>
void Load(Kernel* kernel, cudaError_t& error) {
  cudaFuncAttributes attributes;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
}

inline int64_t MostBytes(const GroupGatherParams::Tensor& tensor) {
  return *std::ranges::max_element(tensor.bytes);
}

}  // namespace baltoro::cuda
