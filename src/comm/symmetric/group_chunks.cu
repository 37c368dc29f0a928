// Many rows: a block takes a chunk. It writes what it sends to a place in its own memory, tells all
// ranks by a flag, waits for theirs and reads what it needs out of their memory. A chunk has two
// places, used in turn: a rank writes to one again two launches later, when each other has told it
// about the launch between, which began when that rank had read all of the one before. Flags count
// uses and are never cleared. Floor: bytes over the links.

#include <algorithm>
#include <type_traits>

#include "comm/symmetric/group_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int64_t kThreadBytes = int64_t{kThreads} * kPacketBytes;  // that a block moves at a time
constexpr int kAhead = 4;                                           // loads under way of a thread
// Chunks of a launch that has few bytes: about as many as there are multiprocessors.
constexpr int64_t kFewChunks = 128;

// A chunk that this block uses now.
class Chunk {
 public:
  __device__ Chunk(const GroupChunks& chunks, const PeerWatch& watch, int64_t chunk)
      : chunks_(chunks), watch_(watch), chunk_(chunk) {
    use_ = *static_cast<volatile uint32_t*>(chunks.counters + chunk);
  }
  // In a rank's memory.
  __device__ char* At(int rank) const {
    const ChunkRegion& region = chunks_.region;
    return chunks_.memory[rank] +
           ((use_ & 1) * region.chunks + chunk_) * region.ranks * kPieceBytes;
  }

  // Whether all goes well, for the whole block.
  __device__ bool Begin() const {
    return __syncthreads_and(threadIdx.x != 0 || Healthy(watch_)) != 0;
  }

  // Says that the block has written, and waits until all others have. False: given up.
  __device__ bool Meet() {
    __syncthreads();
    const int rank = static_cast<int>(threadIdx.x);
    bool met = true;
    if (rank < watch_.ranks && rank != watch_.rank) {
      const int64_t flag = chunk_ * chunks_.region.ranks;
      __threadfence_system();
      StoreWordRelease(chunks_.flags[rank] + flag + watch_.rank, use_ + 1);
      met = AwaitFlag(chunks_.flags[watch_.rank] + flag + rank, use_ + 1, watch_, rank);
    }
    met = __syncthreads_and(met) != 0;
    if (met && threadIdx.x == 0) {
      *static_cast<volatile uint32_t*>(chunks_.counters + chunk_) = use_ + 1;
    }
    return met;
  }

 private:
  const GroupChunks& chunks_;
  const PeerWatch& watch_;
  const int64_t chunk_;
  uint32_t use_;
};

struct GatherJob {
  GroupGatherParams params;
  GroupChunks chunks;
  int64_t first[kGatheredMax + 1] = {};  // chunks before each tensor
  int64_t chunk_bytes = 0;
};

__global__ void __launch_bounds__(kThreads) GatherKernel(const __grid_constant__ GatherJob job) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const GroupGatherParams& p = job.params;
  const PeerWatch& watch = p.watch;
  const int64_t index_of_all = blockIdx.x;
  int index = 0;
  while (index_of_all >= job.first[index + 1]) ++index;
  const GroupGatherParams::Tensor& tensor = p.tensors[index];
  const int64_t begin = (index_of_all - job.first[index]) * job.chunk_bytes;
  const auto count_of = [&](int rank) { return min(tensor.bytes[rank] - begin, job.chunk_bytes); };
  Chunk chunk(job.chunks, watch, index_of_all);
  bool alive = chunk.Begin();

  const int self = watch.rank;
  const int64_t first = int64_t{threadIdx.x} * kPacketBytes;
  char* const place = chunk.At(self);
  char* const to = tensor.all + tensor.offset[self] + begin;
  for (int64_t at = first; at < count_of(self); at += kThreadBytes) {
    const uint4 packet = LoadBytes(tensor.own + begin + at, count_of(self) - at);
    if (alive) *reinterpret_cast<uint4*>(place + at) = packet;
    StoreBytes(to + at, count_of(self) - at, packet);
  }
  if (alive) alive = chunk.Meet();

  for (int i = 1; i < watch.ranks; ++i) {
    // Each rank begins with another.
    const int rank = (self + i) % watch.ranks;
    const int64_t count = count_of(rank);
    const char* const from = chunk.At(rank);
    char* const there = tensor.all + tensor.offset[rank] + begin;
    for (int64_t at = first; at < count; at += kAhead * kThreadBytes) {
      uint4 packets[kAhead] = {};
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int64_t here = at + j * kThreadBytes;
        if (alive && here < count) {
          packets[j] = LoadPacket(reinterpret_cast<const uint4*>(from + here));
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        const int64_t here = at + j * kThreadBytes;
        if (here < count) StoreBytes(there + here, count - here, packets[j]);
      }
    }
  }
}

struct AddJob {
  GroupAddParams params;
  GroupChunks chunks;
  int64_t piece = 0;  // elements that a chunk has for each rank
};

template <int kRanks, typename Own, typename All>
__global__ void __launch_bounds__(kThreads) AddKernel(const __grid_constant__ AddJob job) {
  hopper::LetDependentsLaunch();
  hopper::WaitForPredecessors();
  const GroupAddParams& p = job.params;
  const PeerWatch& watch = p.watch;
  const int64_t begin = int64_t{blockIdx.x} * job.piece;
  const auto count_of = [&](int rank) { return min(p.elements[rank] - begin, job.piece); };
  const auto part_for = [&](int rank, int64_t at) {
    const All* const from = static_cast<const All*>(p.all) + p.offset[rank] + begin + at;
    return LoadPart(from, count_of(rank) - at, p.vectors);
  };
  Chunk chunk(job.chunks, watch, blockIdx.x);
  if (!chunk.Begin()) return;

  const int self = watch.rank;
  constexpr int64_t kStep = int64_t{kThreads} * kEight;
  const int64_t first = int64_t{threadIdx.x} * kEight;
  char* const place = chunk.At(self);
  for (int i = 1; i < watch.ranks; ++i) {
    const int rank = (self + i) % watch.ranks;
    char* const to = place + rank * kPieceBytes;
    for (int64_t at = first; at < count_of(rank); at += kStep) {
      *reinterpret_cast<uint4*>(to + at * 2) = part_for(rank, at);
    }
  }
  if (!chunk.Meet()) return;

  for (int64_t at = first; at < count_of(self); at += kStep) {
    uint4 parts[kRanks];
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank >= watch.ranks || rank == self) continue;
      const char* const from = chunk.At(rank) + self * kPieceBytes + at * 2;
      parts[rank] = LoadPacket(reinterpret_cast<const uint4*>(from));
    }
    const uint4 own = part_for(self, at);
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == self) parts[rank] = own;
    }
    AddParts(static_cast<Own*>(p.own) + begin + at, count_of(self) - at, p.vectors, parts,
             watch.ranks);
  }
}

// Bytes of a chunk: what many blocks share evenly, whole packets of a block.
int64_t Share(int64_t bytes, int64_t most) {
  return std::clamp(Quotient(Quotient(bytes, kFewChunks), kThreadBytes) * kThreadBytes,
                    kThreadBytes, most);
}

int64_t GatherChunkBytes(const GroupGatherParams& params) {
  int64_t bytes = 0;
  for (int i = 0; i < params.count; ++i) bytes += MostBytes(params.tensors[i]);
  return Share(bytes, kGatherChunkBytes);
}

int64_t PieceBytesOf(const GroupAddParams& params) {
  return Share(*std::ranges::max_element(params.elements) * 2, kPieceBytes);
}

}  // namespace

cudaError_t LoadGroupChunkKernels() {
  cudaError_t error = cudaSuccess;
  Load(GatherKernel, error);
  ForAll(
      [&](auto most, auto x, auto y) { Load(AddKernel<most(), decltype(x), decltype(y)>, error); });
  return error;
}

int64_t GroupGatherChunks(const GroupGatherParams& params) {
  const int64_t bytes = GatherChunkBytes(params);
  int64_t chunks = 0;
  for (int i = 0; i < params.count; ++i) chunks += Quotient(MostBytes(params.tensors[i]), bytes);
  return chunks;
}

void LaunchGroupGather(const LaunchStream& stream,
                       const GroupGatherParams& params,
                       const GroupChunks& chunks) {
  GatherJob job{.params = params, .chunks = chunks, .chunk_bytes = GatherChunkBytes(params)};
  for (int i = 0; i < params.count; ++i) {
    job.first[i + 1] = job.first[i] + Quotient(MostBytes(params.tensors[i]), job.chunk_bytes);
  }
  const int64_t blocks = job.first[params.count];
  BT_CHECK(blocks > 0 && blocks <= chunks.region.chunks);
  LaunchAhead("rows of replicas, in chunks", stream, GatherKernel,
              dim3(static_cast<unsigned>(blocks)), kThreads, job);
}

int64_t GroupAddChunks(const GroupAddParams& params) {
  return Quotient(*std::ranges::max_element(params.elements) * 2, PieceBytesOf(params));
}

void LaunchGroupAdd(const LaunchStream& stream,
                    const GroupAddParams& params,
                    const GroupChunks& chunks) {
  const AddJob job{.params = params, .chunks = chunks, .piece = PieceBytesOf(params) / 2};
  const int64_t blocks = GroupAddChunks(params);
  BT_CHECK(blocks > 0 && blocks <= chunks.region.chunks);
  ForRanks(params.watch.ranks, [&](auto most) {
    ForTypes(params.own_bf16, params.all_bf16, [&](auto x, auto y) {
      LaunchAhead("sums of replicas, in chunks", stream,
                  AddKernel<most(), decltype(x), decltype(y)>, dim3(static_cast<unsigned>(blocks)),
                  kThreads, job);
    });
  });
}

}  // namespace baltoro::cuda
