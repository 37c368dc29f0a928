#pragma once

// Lanes of packets (peer_memory.h), and packets of elements. Device code only.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/symmetric/peer_device.cuh"

namespace baltoro::cuda {

// A lane of an exchange region that this warp uses now.
class Lane {
 public:
  __device__ Lane(const ExchangeRegion& region, uint32_t* counters, int64_t lane)
      : region_(region), lane_(lane), counter_(counters + lane) {
    place_ = static_cast<int>(*static_cast<volatile uint32_t*>(counter_));
  }
  // Where rank `from`'s packet for this thread lies, in any rank's memory.
  __device__ int64_t At(int from) const { return At(place_, from); }
  __device__ int64_t stride() const { return kLanePackets; }

  // By all threads of the warp, at the end.
  __device__ void Leave(uint4* own, const PeerWatch& watch) {
    for (int rank = 0; rank < watch.ranks; ++rank) {
      if (rank != watch.rank) ClearPacket(own + At(LastPlace(place_), rank));
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      *static_cast<volatile uint32_t*>(counter_) = static_cast<uint32_t>(NextPlace(place_));
    }
  }

 private:
  __device__ int64_t At(int place, int from) const {
    return ((place * region_.lanes + lane_) * region_.ranks + from) * kLanePackets +
           threadIdx.x % 32;
  }
  const ExchangeRegion& region_;
  int64_t lane_;
  uint32_t* counter_;
  int place_;
};

template <typename T>
__device__ uint4 LoadElements(const T* from, int count, bool vectors) {
  constexpr int kElements = kPacketBytes / static_cast<int>(sizeof(T));
  if (vectors && count >= kElements) return *reinterpret_cast<const uint4*>(from);
  union {
    uint4 packet;
    T elements[kElements];
  } x;
#pragma unroll
  for (int i = 0; i < kElements; ++i) x.elements[i] = i < count ? from[i] : T{0};
  return x.packet;
}

template <typename T>
__device__ void StoreElements(T* to, int count, uint4 packet) {
  constexpr int kElements = kPacketBytes / static_cast<int>(sizeof(T));
  if (count >= kElements && reinterpret_cast<uintptr_t>(to) % kPacketBytes == 0) {
    *reinterpret_cast<uint4*>(to) = packet;
    return;
  }
  union {
    uint4 packet;
    T elements[kElements];
  } x;
  x.packet = packet;
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    if (i < count) to[i] = x.elements[i];
  }
}

}  // namespace baltoro::cuda
