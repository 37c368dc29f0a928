// A warp takes a lane of packets: it writes its own to all (or to whom they are for), and waits for
// those of each rank. Floor: bytes over the links; at few rows a launch, a load and one way over
// the links.

#include <algorithm>

#include "comm/symmetric/exchange.h"
#include "comm/symmetric/lanes_device.cuh"
#include "ops/cuda/rows/rows_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;

// T: uint32_t or uint16_t, the bits of an element.
template <typename T>
__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ GatherParams p) {
  constexpr int kElements = kPacketBytes / static_cast<int>(sizeof(T));
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int64_t lane = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (lane >= int64_t{p.rows} * p.lanes_of_row) return;
  const int64_t row = lane / p.lanes_of_row;
  const int column = (static_cast<int>(lane % p.lanes_of_row) * kLanePackets +
                      static_cast<int>(threadIdx.x) % 32) *
                     kElements;
  const int self = p.watch.rank;
  uint4* const memory = p.memory[self];
  T* const all = static_cast<T*>(p.all) + row * p.all_stride + column;
  const int own_count = p.widths[self] - column;
  uint4 own = {};
  if (own_count > 0) {
    const T* const from = static_cast<const T*>(p.own) + row * p.own_stride + column;
    own = LoadElements(from, own_count, p.own_in_vectors);
  }
  Lane place(p.region, p.counters, lane);
  if (!__all_sync(~0u, Healthy(p.watch))) return;

  if (own_count > 0) {
    const uint4 sealed = Seal(own);
    for (int rank = 0; rank < p.watch.ranks; ++rank) {
      if (rank != self) StorePacket(p.memory[rank] + place.At(self), sealed);
    }
    StoreElements(all + p.offsets[self], own_count, own);
  }
  for (int rank = 0; rank < p.watch.ranks; ++rank) {
    const int count = p.widths[rank] - column;
    if (rank == self || count <= 0) continue;
    uint4 packet;
    if (!Await(memory + place.At(rank), packet, p.watch, rank)) break;
    StoreElements(all + p.offsets[rank], count, packet);
  }
  place.Leave(memory, p.watch);
}

// Threads 0 to 30 hold a packet of the head, thread 31 its lse.
__global__ void __launch_bounds__(kThreads) MergeKernel(const __grid_constant__ MergeParams p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int packets = (p.value + kHalvesOfPacket - 1) / kHalvesOfPacket;
  const int lanes_of_head = (packets + kMergePackets - 1) / kMergePackets;
  const int64_t lane = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (lane >= int64_t{p.rows} * p.heads * lanes_of_head) return;
  const int64_t row = lane / (p.heads * lanes_of_head);
  const int head = static_cast<int>(lane / lanes_of_head) % p.heads;
  const int thread = threadIdx.x % 32;
  const bool sums = thread == kMergePackets;  // holds the lse
  const int at =
      (static_cast<int>(lane % lanes_of_head) * kMergePackets + thread) * kHalvesOfPacket;
  const int count = sums ? 0 : p.value - at;
  const int self = p.watch.rank;
  uint4* const memory = p.memory[self];
  Lane place(p.region, p.counters, lane);

  const auto part_for = [&](int rank) {
    const int there = rank * p.heads + head;
    if (sums) {
      return make_uint4(__float_as_uint(p.lse[row * p.lse_stride + there]), 0, 0, 0);
    }
    return LoadElements(p.partial + row * p.partial_stride + int64_t{there} * p.value + at, count,
                        p.vectors);
  };
  const bool takes_part = sums || count > 0;
  if (!__all_sync(~0u, Healthy(p.watch))) return;
  if (takes_part) {
    for (int rank = 0; rank < p.watch.ranks; ++rank) {
      if (rank != self) StorePacket(p.memory[rank] + place.At(self), Seal(part_for(rank)));
    }
  }
  uint4 parts[kPeersMax];
  if (takes_part) AwaitAll(memory + place.At(0), place.stride(), parts, p.watch);
  if (takes_part) {
    const uint4 own = part_for(self);
#pragma unroll
    for (int rank = 0; rank < kPeersMax; ++rank) {
      if (rank == self) parts[rank] = own;
    }
  }
  __syncwarp();

  float lse[kPeersMax], highest = -INFINITY;
#pragma unroll
  for (int rank = 0; rank < kPeersMax; ++rank) {
    lse[rank] = __shfl_sync(~0u, __uint_as_float(parts[rank].x), kMergePackets);
    if (rank < p.watch.ranks) highest = fmaxf(highest, lse[rank]);
  }
  const float base = highest == -INFINITY ? 0 : highest;
  float merged[kEight] = {}, total = 0;
#pragma unroll
  for (int rank = 0; rank < kPeersMax; ++rank) {
    if (rank >= p.watch.ranks) continue;
    const float weight = expf(lse[rank] - base);
    total += weight;
    if (weight == 0) continue;  // no keys there, whatever the part says
    const uint32_t words[4] = {parts[rank].x, parts[rank].y, parts[rank].z, parts[rank].w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      merged[2 * i] += weight * __uint_as_float(words[i] << 16);
      merged[2 * i + 1] += weight * __uint_as_float(words[i] & 0xFFFF0000u);
    }
  }
  const float share = total == 0 ? 0 : 1 / total;
#pragma unroll
  for (float& x : merged) x *= share;
  if (count > 0) {
    auto* const to =
        reinterpret_cast<__nv_bfloat16*>(p.own) + row * p.own_stride + int64_t{head} * p.value + at;
    StoreEight(to, count, p.vectors, merged);
  }
  place.Leave(memory, p.watch);
}

constexpr int kPipeWarps = 8;
constexpr uint32_t kTellEvery = 4;  // uses after which the reader says so; divides kPipeDepth

// Each warp takes every kPipeLanes-th lane of x.
template <bool kSends>
__global__ void __launch_bounds__(kPipeWarps * 32)
    PipeKernel(const __grid_constant__ PipeParams p) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const int thread = threadIdx.x % 32;
  const int64_t lane = int64_t{blockIdx.x} * kPipeWarps + threadIdx.x / 32;
  if (!__all_sync(~0u, Healthy(p.watch))) return;
  volatile uint32_t* const counter = p.counters + lane;
  uint32_t use = *counter;
  constexpr int64_t kFloatsOfLane = int64_t{kLanePackets} * kFloatsOfPacket;
  bool alive = true;
  for (int64_t begin = lane * kFloatsOfLane; begin < p.count && alive;
       begin += kPipeLanes * kFloatsOfLane, ++use) {
    const int64_t at = begin + int64_t{thread} * kFloatsOfPacket;
    const int count = static_cast<int>(min(p.count - at, int64_t{kFloatsOfPacket}));
    uint4* const packet_at =
        p.packets + (lane * kPipeDepth + use % kPipeDepth) * kLanePackets + thread;
    auto* const x = reinterpret_cast<uint32_t*>(p.x) + at;
    if constexpr (kSends) {
      // The reader has cleared what this place held before.
      Waiting wait;
      for (int spins = 1; alive; ++spins) {
        const uint32_t done = LoadWordAcquire(p.done + lane);
        if (static_cast<int32_t>(done + uint32_t{kPipeDepth} - 1 - use) >= 0) break;
        PauseAfter(spins);
        alive = spins % kSpins != 0 || !GivesUp(p.watch, &wait, p.other);
      }
      alive = __all_sync(~0u, alive);
      if (alive && count > 0) StorePacket(packet_at, Seal(LoadElements(x, count, p.vectors)));
    } else {
      if (count > 0) {
        uint4 packet;
        alive = Await(packet_at, packet, p.watch, p.other);
        if (alive) {
          StoreElements(x, count, packet);
          ClearPacket(packet_at);
        }
      }
      alive = __all_sync(~0u, alive);
      if (alive && use % kTellEvery == kTellEvery - 1) {
        __threadfence_system();
        __syncwarp();
        if (thread == 0) StoreWordRelease(p.done + lane, use + 1);
      }
    }
  }
  __syncwarp();
  if (thread == 0) *counter = use;
}

void CheckLanes(int64_t lanes, const ExchangeRegion& region) {
  BT_CHECK(lanes <= region.lanes);
}

dim3 BlocksOf(int64_t lanes) {
  return dim3(static_cast<unsigned>((lanes + kWarps - 1) / kWarps));
}

template <bool kSends>
void LaunchPipe(const LaunchStream& stream, const PipeParams& params) {
  if (params.count == 0) return;
  constexpr int64_t kFloatsOfBlock = int64_t{kPipeWarps} * kLanePackets * kFloatsOfPacket;
  const int64_t blocks =
      std::min((params.count + kFloatsOfBlock - 1) / kFloatsOfBlock, kPipeLanes / kPipeWarps);
  LaunchAhead("residual between stages", stream, PipeKernel<kSends>,
              dim3(static_cast<unsigned>(blocks)), kPipeWarps * 32, params);
}

}  // namespace

cudaError_t LoadExchangeKernels() {
  const auto load = [](auto* kernel) {
    cudaFuncAttributes attributes;
    return cudaFuncGetAttributes(&attributes, kernel);
  };
  for (const cudaError_t error :
       {load(GatherKernel<uint16_t>), load(GatherKernel<uint32_t>), load(MergeKernel),
        load(PipeKernel<true>), load(PipeKernel<false>)}) {
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

int GatherLanesOfRow(int64_t width, int element_bytes) {
  const int64_t elements = int64_t{kLanePackets} * kPacketBytes / element_bytes;
  return static_cast<int>((width + elements - 1) / elements);
}

int MergeLanesOfHead(int64_t value) {
  const int64_t packets = (value + kHalvesOfPacket - 1) / kHalvesOfPacket;
  return static_cast<int>((packets + kMergePackets - 1) / kMergePackets);
}

void LaunchGather(const LaunchStream& stream, const GatherParams& params) {
  const int64_t lanes = int64_t{params.rows} * params.lanes_of_row;
  CheckLanes(lanes, params.region);
  if (lanes == 0) return;
  const auto kernel = params.element_bytes == 4 ? GatherKernel<uint32_t> : GatherKernel<uint16_t>;
  LaunchAhead("columns of ranks", stream, kernel, BlocksOf(lanes), kThreads, params);
}

void LaunchMerge(const LaunchStream& stream, const MergeParams& params) {
  const int64_t lanes = int64_t{params.rows} * params.heads * MergeLanesOfHead(params.value);
  CheckLanes(lanes, params.region);
  if (lanes == 0) return;
  LaunchAhead("heads of ranks", stream, MergeKernel, BlocksOf(lanes), kThreads, params);
}

void LaunchSend(const LaunchStream& stream, const PipeParams& params) {
  LaunchPipe<true>(stream, params);
}

void LaunchReceive(const LaunchStream& stream, const PipeParams& params) {
  LaunchPipe<false>(stream, params);
}

}  // namespace baltoro::cuda
