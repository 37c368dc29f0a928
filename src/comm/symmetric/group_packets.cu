// Few rows: a warp takes a lane of packets (lanes_device.cuh). What is gathered has any bits, also
// those that stand for no data. So 31 packets of a lane are data, in which a word of all ones is
// sent as another, and the last says which words these are: a bit for each thread in each of its
// words, whose highest bit is never set. Parts of sums are bf16, which have one NaN only, and fill
// all 32. Floor: bytes over the links; a launch, a load and one way over the links.

#include <algorithm>
#include <type_traits>

#include "comm/symmetric/group_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int64_t kElementsOfLane = int64_t{kLanePackets} * kEight;

struct GatherJob {
  GroupGatherParams params;
  GroupPackets packets;
  int64_t first[kGatheredMax + 1] = {};  // lanes before each tensor
};

__device__ uint4 MarksOf(const uint4& packet) {
  return make_uint4(
      __ballot_sync(~0u, packet.x == kNoData), __ballot_sync(~0u, packet.y == kNoData),
      __ballot_sync(~0u, packet.z == kNoData), __ballot_sync(~0u, packet.w == kNoData));
}

__device__ uint32_t Unseal(uint32_t word, uint32_t marks, int thread) {
  return (__shfl_sync(~0u, marks, kGuardedPackets) >> thread & 1) != 0 ? kNoData : word;
}

template <int kRanks>
__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ GatherJob job) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const GroupGatherParams& p = job.params;
  const PeerWatch& watch = p.watch;
  const int64_t lane = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (lane >= job.first[p.count]) return;
  int index = 0;
  while (lane >= job.first[index + 1]) ++index;
  const GroupGatherParams::Tensor& tensor = p.tensors[index];
  const int thread = threadIdx.x % 32, self = watch.rank;
  const bool marks = thread == kGuardedPackets;
  const int64_t begin = (lane - job.first[index]) * kGuardedBytes;
  const int64_t at = begin + int64_t{thread} * kPacketBytes;
  // Who has nothing at all says so in the first lane.
  const auto sends = [&](int rank) {
    if (rank >= watch.ranks) return false;
    return marks ? tensor.bytes[rank] > begin || lane == 0 : tensor.bytes[rank] > at;
  };
  Lane place(job.packets.region, job.packets.counters, lane);
  uint4* const memory = job.packets.memory[self];
  const int64_t count = marks ? 0 : tensor.bytes[self] - at;
  uint4 own = {};
  if (count > 0) own = LoadBytes(tensor.own + at, count);
  bool alive = __all_sync(~0u, Healthy(watch));

  const uint4 marked = MarksOf(own);
  if (alive && sends(self)) {
    const uint4 sealed = marks ? marked : Seal(own);
    for (int rank = 0; rank < watch.ranks; ++rank) {
      if (rank != self) StorePacket(job.packets.memory[rank] + place.At(self), sealed);
    }
  }
  if (count > 0) StoreBytes(tensor.all + tensor.offset[self] + at, count, own);
  uint4 parts[kRanks] = {};
  if (alive) {
    alive = AwaitThose(memory + place.At(0), place.stride(), parts, watch,
                       [&](int rank) { return rank != self && sends(rank); });
  }
  alive = __all_sync(~0u, alive);
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    const uint4 packet = parts[rank];
    const uint4 bits =
        make_uint4(Unseal(packet.x, packet.x, thread), Unseal(packet.y, packet.y, thread),
                   Unseal(packet.z, packet.z, thread), Unseal(packet.w, packet.w, thread));
    if (rank == self || marks || !sends(rank)) continue;
    // Behind a failure numbers of experts must be some.
    StoreBytes(tensor.all + tensor.offset[rank] + at, tensor.bytes[rank] - at,
               alive ? bits : uint4{});
  }
  if (alive) place.Leave(memory, watch);
}

struct AddJob {
  GroupAddParams params;
  GroupPackets packets;
  int64_t lanes = 0;
};

template <int kRanks, typename Own, typename All>
__global__ void __launch_bounds__(kThreads) AddKernel(const __grid_constant__ AddJob job) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const GroupAddParams& p = job.params;
  const PeerWatch& watch = p.watch;
  const int64_t lane = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  if (lane >= job.lanes) return;
  const int self = watch.rank;
  const int64_t at = lane * kElementsOfLane + threadIdx.x % 32 * kEight;
  Lane place(job.packets.region, job.packets.counters, lane);
  uint4* const memory = job.packets.memory[self];
  // Who takes no part of the sum still hears from all, in the first lane.
  const auto takes = [&](int rank) {
    return p.elements[rank] > at || (at == 0 && p.elements[rank] == 0);
  };
  const auto part_for = [&](int rank) {
    const int64_t count = p.elements[rank] - at;
    const All* const from = static_cast<const All*>(p.all) + p.offset[rank] + at;
    return count > 0 ? LoadPart(from, count, p.vectors) : uint4{};
  };
  bool alive = __all_sync(~0u, Healthy(watch));
  if (!alive) return;
#pragma unroll
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank >= watch.ranks || rank == self || !takes(rank)) continue;
    StorePacket(job.packets.memory[rank] + place.At(self), part_for(rank));
  }
  uint4 parts[kRanks] = {};
  const bool mine = takes(self);
  if (mine) {
    alive = AwaitThose(memory + place.At(0), place.stride(), parts, watch,
                       [&](int rank) { return rank != self && rank < watch.ranks; });
  }
  const int64_t count = p.elements[self] - at;
  if (alive && count > 0) {
    const uint4 own = part_for(self);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == self) parts[rank] = own;
    }
    AddParts(static_cast<Own*>(p.own) + at, count, p.vectors, parts, watch.ranks);
  }
  if (__all_sync(~0u, alive)) place.Leave(memory, watch);
}

dim3 BlocksOf(int64_t lanes) {
  return dim3(static_cast<unsigned>((lanes + kWarps - 1) / kWarps));
}

}  // namespace

cudaError_t LoadGroupPacketKernels() {
  cudaError_t error = cudaSuccess;
  ForAll([&](auto most, auto x, auto y) {
    Load(GatherKernel<most()>, error);
    Load(AddKernel<most(), decltype(x), decltype(y)>, error);
  });
  return error;
}

int64_t GroupGatherLanes(const GroupGatherParams& params) {
  int64_t lanes = 0;
  for (int i = 0; i < params.count; ++i) {
    lanes += Quotient(MostBytes(params.tensors[i]), kGuardedBytes);
  }
  return lanes;
}

void LaunchGroupGather(const LaunchStream& stream,
                       const GroupGatherParams& params,
                       const GroupPackets& packets) {
  GatherJob job{.params = params, .packets = packets};
  for (int i = 0; i < params.count; ++i) {
    job.first[i + 1] = job.first[i] + Quotient(MostBytes(params.tensors[i]), kGuardedBytes);
  }
  const int64_t lanes = job.first[params.count];
  BT_CHECK(lanes > 0 && lanes <= packets.region.lanes);
  ForRanks(params.watch.ranks, [&](auto most) {
    LaunchAhead("rows of replicas, in packets", stream, GatherKernel<most()>, BlocksOf(lanes),
                kThreads, job);
  });
}

int64_t GroupAddLanes(const GroupAddParams& params) {
  return Quotient(*std::ranges::max_element(params.elements), kElementsOfLane);
}

void LaunchGroupAdd(const LaunchStream& stream,
                    const GroupAddParams& params,
                    const GroupPackets& packets) {
  const AddJob job{.params = params, .packets = packets, .lanes = GroupAddLanes(params)};
  BT_CHECK(job.lanes > 0 && job.lanes <= packets.region.lanes);
  ForRanks(params.watch.ranks, [&](auto most) {
    ForTypes(params.own_bf16, params.all_bf16, [&](auto x, auto y) {
      LaunchAhead("sums of replicas, in packets", stream,
                  AddKernel<most(), decltype(x), decltype(y)>, BlocksOf(job.lanes), kThreads, job);
    });
  });
}

}  // namespace baltoro::cuda
