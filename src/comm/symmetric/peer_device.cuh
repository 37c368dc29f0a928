#pragma once

// Packets between GPUs (peer_memory.h): writing them, waiting for them, giving up. Device code
// only.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "comm/symmetric/peer_memory.h"

namespace baltoro::cuda {

inline constexpr uint32_t kNoData = 0xFFFFFFFFu;

// Data in place of "no data": the word is one NaN of f32 or two of bf16, and stays such.
__device__ __forceinline__ uint32_t Seal(uint32_t word) {
  return word == kNoData ? 0x7FFF7FFFu : word;
}
__device__ __forceinline__ uint4 Seal(uint4 packet) {
  return make_uint4(Seal(packet.x), Seal(packet.y), Seal(packet.z), Seal(packet.w));
}

__device__ __forceinline__ void StorePacket(uint4* to, uint4 packet) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(packet.x),
               "r"(packet.y), "r"(packet.z), "r"(packet.w)
               : "memory");
}
__device__ __forceinline__ uint4 LoadPacket(const uint4* from) {
  uint4 packet;
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(packet.x), "=r"(packet.y), "=r"(packet.z), "=r"(packet.w)
               : "l"(from)
               : "memory");
  return packet;
}
__device__ __forceinline__ void ClearPacket(uint4* at) {
  StorePacket(at, make_uint4(kNoData, kNoData, kNoData, kNoData));
}
__device__ __forceinline__ bool Arrived(const uint4& packet) {
  return packet.x != kNoData && packet.y != kNoData && packet.z != kNoData && packet.w != kNoData;
}

__device__ __forceinline__ uint32_t LoadWord(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.b32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ void StoreWord(uint32_t* to, uint32_t word) {
  asm volatile("st.relaxed.sys.global.b32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}
// All that this thread's warp did before its last barrier is done for who reads the word so.
__device__ __forceinline__ uint32_t LoadWordAcquire(const uint32_t* from) {
  uint32_t word;
  asm volatile("ld.acquire.sys.global.b32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}
__device__ __forceinline__ void StoreWordRelease(uint32_t* to, uint32_t word) {
  asm volatile("st.release.sys.global.b32 [%0], %1;" ::"l"(to), "r"(word) : "memory");
}

// Whether all goes well so far; a kernel for which it does not neither writes nor waits. Tells the
// host what another GPU found.
__device__ __forceinline__ bool Healthy(const PeerWatch& watch) {
  const uint32_t failure = LoadWord(watch.failure);
  if (failure == 0) return true;
  if (LoadWord(watch.failure_of_process) == 0) StoreWord(watch.failure_of_process, failure);
  return false;
}

inline constexpr int kSpins = 512;  // looks between two questions whether to go on

// Who waits long looks less often: tens of thousands of threads that look without a pause take the
// L2's time from the packets that they wait for.
inline constexpr int kEagerLooks = 32;
inline constexpr unsigned kPauseNs = 500;
__device__ __forceinline__ void PauseAfter(int looks) {
  if (looks > kEagerLooks) __nanosleep(kPauseNs);
}

// How long a thread has waited, by the GPU's clock.
struct Waiting {
  uint64_t since = 0, asked = 0;
};
// Thousands of warps that ask for one word of the host's memory are answered one after the other,
// in milliseconds; whoever is late by that makes the others ask next. So only long waits ask.
inline constexpr uint64_t kAskHostNs = 50'000'000;

// Asked now and then while rank `missing` of the group is waited for: whether something failed here
// or elsewhere, or patience has ended, which it then tells all others.
static __device__ __noinline__ bool GivesUp(const PeerWatch& watch, Waiting* wait, int missing) {
  if (!Healthy(watch)) return true;
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  if (wait->since == 0) wait->since = wait->asked = now;
  const bool impatient = now - wait->since > watch.patience_ns;
  if (!impatient && now - wait->asked < kAskHostNs) return false;
  wait->asked = now;
  uint32_t failure = 0;
  if (__ffs(static_cast<int>(__activemask())) - 1 == static_cast<int>(threadIdx.x % 32)) {
    failure = LoadWord(watch.failure_of_process);
  }
  if (failure == 0 && impatient) {
    failure = PackFailure(
        {FailureKind::kTimedOut, watch.world_ranks[watch.rank], watch.world_ranks[missing]});
    StoreWord(watch.failure_of_process, failure);
  }
  if (failure == 0) return false;
  for (int rank = 0; rank < watch.ranks; ++rank) {
    if (watch.failure_of[rank] != nullptr) StoreWord(watch.failure_of[rank], failure);
  }
  return true;
}

// Waits for the packet from rank `from`. False: given up.
__device__ __forceinline__ bool Await(const uint4* at,
                                      uint4& packet,
                                      const PeerWatch& watch,
                                      int from) {
  Waiting wait;
  for (int spins = 1;; ++spins) {
    packet = LoadPacket(at);
    if (Arrived(packet)) return true;
    PauseAfter(spins);
    if (spins % kSpins == 0 && GivesUp(watch, &wait, from)) return false;
  }
}

// Likewise the packets of the ranks that `wanted` names, which lie `stride` packets apart; those of
// others are left as they are. kRanks: the most there are.
template <int kRanks, typename Wanted>
__device__ __forceinline__ bool AwaitThose(const uint4* at,
                                           int64_t stride,
                                           uint4 (&packets)[kRanks],
                                           const PeerWatch& watch,
                                           const Wanted& wanted) {
  Waiting wait;
  for (int spins = 1;; ++spins) {
    int missing = -1;
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (wanted(rank)) packets[rank] = LoadPacket(at + rank * stride);
    }
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (wanted(rank) && !Arrived(packets[rank])) missing = rank;
    }
    if (missing < 0) return true;
    PauseAfter(spins);
    if (spins % kSpins == 0 && GivesUp(watch, &wait, missing)) return false;
  }
}

// Of all others.
template <int kRanks>
__device__ __forceinline__ bool AwaitAll(const uint4* at,
                                         int64_t stride,
                                         uint4 (&packets)[kRanks],
                                         const PeerWatch& watch) {
  return AwaitThose(at, stride, packets, watch,
                    [&](int rank) { return rank < watch.ranks && rank != watch.rank; });
}

// Waits until rank `from` has stepped its flag to `use` or further. What its block wrote before is
// there for this thread then, and behind a barrier for its block.
__device__ __forceinline__ bool AwaitFlag(const uint32_t* flag,
                                          uint32_t use,
                                          const PeerWatch& watch,
                                          int from) {
  Waiting wait;
  for (int spins = 1;; ++spins) {
    if (static_cast<int32_t>(LoadWordAcquire(flag) - use) >= 0) return true;
    PauseAfter(spins);
    if (spins % kSpins == 0 && GivesUp(watch, &wait, from)) return false;
  }
}

__device__ __forceinline__ int NextPlace(int place) {
  return place == kPlaces - 1 ? 0 : place + 1;
}
__device__ __forceinline__ int LastPlace(int place) {
  return place == 0 ? kPlaces - 1 : place - 1;
}

}  // namespace baltoro::cuda
