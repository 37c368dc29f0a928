// Each thread holds one packet of a row, eight elements of parts in bf16, from the load to the end:
// it writes the packet to who adds it, waits for what it needs of the others and needs no other
// thread but for the sum of squares. Floor: one shot 2 (ranks - 1) bytes an element over the links,
// two shots 4 (ranks - 1) / ranks; at few rows the time of a launch, a load and one way (two ways)
// over the links.

#include <algorithm>

#include "comm/symmetric/peer_device.cuh"
#include "comm/symmetric/sum.h"
#include "ops/cuda/launch/placed_launch.h"
#include "ops/cuda/rows/norm_copies_device.cuh"
#include "ops/cuda/rows/norm_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kThreadsMax = 512;
constexpr int kWarpsOfRowMax = 128;

__device__ uint32_t BlockOfCluster() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ uint32_t BlocksOfCluster() {
  uint32_t blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return blocks;
}
__device__ void ClusterArrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
__device__ void ClusterWait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ void StoreToBlock(const float* shared, uint32_t block, float value) {
  asm volatile(
      "{\n"
      ".reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "st.shared::cluster.f32 [there], %2;\n"
      "}\n" ::"r"(hopper::SharedAddress(shared)),
      "r"(block), "f"(value)
      : "memory");
}

__device__ void Unpack(const uint4& packet, float (&x)[kEight]) {
  const uint32_t words[4] = {packet.x, packet.y, packet.z, packet.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = __uint_as_float(words[i] << 16);
    x[2 * i + 1] = __uint_as_float(words[i] & 0xFFFF0000u);
  }
}
// The conversion gives one NaN only, which is data.
__device__ uint4 Pack(const float (&x)[kEight]) {
  return make_uint4(hopper::PackBf16(x[0], x[1]), hopper::PackBf16(x[2], x[3]),
                    hopper::PackBf16(x[4], x[5]), hopper::PackBf16(x[6], x[7]));
}

// What a thread does with its packet of a row, in the order of the calls.
template <int kRanks, bool kTwoShot>
class RowExchange {
 public:
  __device__ RowExchange(const SumParams& p, int packet)
      : p_(p), packet_(packet), owner_(packet / static_cast<int>(p.region.slice)) {}

  // Asks the counter of the row's lane for the place; nothing waits for the answer yet.
  __device__ void Enter(int row) {
    row_ = row;
    place_ = static_cast<int>(*Counter());
  }

  // `part` is this rank's.
  __device__ void Send(const uint4& part) {
    const SumRegion& region = p_.region;
    part_ = part;
    const int self = p_.watch.rank;
    if constexpr (kTwoShot) {
      if (owner_ != self) StorePacket(p_.memory[owner_] + PartAt(place_, self), part);
    } else {
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank < region.ranks && rank != self) {
          StorePacket(p_.memory[rank] + OneShotAt(place_, self), part);
        }
      }
    }
  }

  // The sum of all parts, rounded to bf16 after two shots.
  __device__ bool Receive(float (&sum)[kEight]) {
    const int self = p_.watch.rank;
    uint4* const own = p_.memory[self];
    if constexpr (kTwoShot) {
      if (owner_ != self) {
        uint4 packet;
        const bool there = Await(own + SumAt(place_), packet, p_.watch, owner_);
        Unpack(packet, sum);
        return there;
      }
      uint4 parts[kRanks];
      const bool there = AwaitAll(own + PartAt(place_, 0), p_.region.slice, parts, p_.watch);
      Add(parts, sum);
      if (!there) return false;
      const uint4 packet = Pack(sum);
#pragma unroll
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank < p_.region.ranks && rank != self) {
          StorePacket(p_.memory[rank] + SumAt(place_), packet);
        }
      }
      Unpack(packet, sum);
      return true;
    } else {
      uint4 parts[kRanks];
      const bool there = AwaitAll(own + OneShotAt(place_, 0), p_.region.packets, parts, p_.watch);
      Add(parts, sum);
      return there;
    }
  }

  // Makes the place of the last use free. Every packet of the lane has its thread do it.
  __device__ void Clear() {
    const int self = p_.watch.rank, last = LastPlace(place_);
    uint4* const own = p_.memory[self];
    if (kTwoShot && owner_ != self) {
      ClearPacket(own + SumAt(last));
      return;
    }
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank < p_.region.ranks && rank != self) {
        ClearPacket(own + (kTwoShot ? PartAt(last, rank) : OneShotAt(last, rank)));
      }
    }
  }

  __device__ void TakeFrom(const RowExchange& other) {
    row_ = other.row_;
    place_ = other.place_;
    part_ = other.part_;
  }

  // By one thread of the lane, when all of it have sent.
  __device__ void StepCounter() {
    *Counter() = static_cast<uint32_t>(NextPlace(place_));
  }

 private:
  __device__ volatile uint32_t* Counter() const {
    const int64_t rows_before = kTwoShot ? p_.region.rows_one_shot : 0;
    const int lanes = (static_cast<int>(p_.region.packets) + kLanePackets - 1) / kLanePackets;
    return p_.counters + (rows_before + row_) * lanes + packet_ / kLanePackets;
  }
  __device__ int64_t OneShotAt(int place, int from) const {
    const SumRegion& r = p_.region;
    return ((place * r.rows_one_shot + row_) * r.ranks + from) * r.packets + packet_;
  }
  __device__ int64_t PartAt(int place, int from) const {
    const SumRegion& r = p_.region;
    return r.ranks * r.packets * r.rows_one_shot * kPlaces +
           ((place * r.rows_two_shot + row_) * r.ranks + from) * r.slice +
           (packet_ - owner_ * r.slice);
  }
  __device__ int64_t SumAt(int place) const {
    const SumRegion& r = p_.region;
    return r.ranks * kPlaces * (r.packets * r.rows_one_shot + r.slice * r.rows_two_shot) +
           (place * r.rows_two_shot + row_) * r.packets + packet_;
  }
  // In the order of the ranks, this one's part rounded as the others'.
  __device__ void Add(uint4 (&parts)[kRanks], float (&sum)[kEight]) const {
#pragma unroll
    for (int i = 0; i < kEight; ++i) sum[i] = 0;
#pragma unroll
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank >= p_.region.ranks) continue;
      float x[kEight];
      Unpack(rank == p_.watch.rank ? part_ : parts[rank], x);
#pragma unroll
      for (int i = 0; i < kEight; ++i) sum[i] += x[i];
    }
  }

  const SumParams& p_;
  const int packet_, owner_;
  int row_ = 0, place_ = 0;
  uint4 part_ = {};
};

// The sum of `value` over all threads of a cluster, the same bits in each; `partial` [warps of the
// cluster], not used in the call before.
__device__ float ClusterSum(float value, float* partial) {
  const uint32_t blocks = BlocksOfCluster();
  const int lane = threadIdx.x % 32, warps = static_cast<int>(blockDim.x) / 32;
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  float* const own =
      partial + static_cast<int>(BlockOfCluster()) * warps + static_cast<int>(threadIdx.x) / 32;
  if (blocks == 1) {
    if (lane == 0) *own = value;
    __syncthreads();
  } else {
    if (lane < static_cast<int>(blocks)) StoreToBlock(own, static_cast<uint32_t>(lane), value);
    ClusterArrive();
    ClusterWait();
  }
  value = 0;
  for (int warp = lane; warp < static_cast<int>(blocks) * warps; warp += 32) value += partial[warp];
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// A cluster takes rows in turn; it sends the next one before it waits for one.
// X: of the parts.
template <int kRanks, bool kTwoShot, bool kNorm, typename X>
__global__ void __launch_bounds__(kThreadsMax) SumKernel(const __grid_constant__ SumParams p) {
  __shared__ float partial[2][kWarpsOfRowMax];
  const int blocks = static_cast<int>(BlocksOfCluster());
  const int packet = static_cast<int>(BlockOfCluster() * blockDim.x + threadIdx.x);
  const int at = packet * kEight, count = p.width - at;
  const bool holds = count > 0;
  const int step = static_cast<int>(gridDim.x) / blocks;
  hopper::LetDependentsLaunch();
  // Before others write to a block's memory, it must be there.
  if (kNorm && blocks > 1) ClusterArrive();
  [[maybe_unused]] float weight[kEight] = {}, residual[kEight] = {};
  if (kNorm) LoadEight(p.weight + at, count, p.vectors, weight);
  hopper::WaitForPredecessors();

  // Loads of a row, of its place and of the state of the world are all under way before the first
  // of them is waited for.
  RowExchange<kRanks, kTwoShot> now(p, packet), next(p, packet);
  float x[kEight];
  const auto load = [&](RowExchange<kRanks, kTwoShot>& exchange, int row) {
    LoadEight(static_cast<const X*>(p.x) + row * p.x_stride + at, count, p.vectors, x);
    if (holds) exchange.Enter(row);
  };
  const auto load_residual = [&](int row) {
    if (kNorm) LoadEight(p.residual + row * p.residual_stride + at, count, p.vectors, residual);
  };

  int row = static_cast<int>(blockIdx.x) / blocks;
  load(now, row);
  load_residual(row);
  bool alive = Healthy(p.watch) && holds;
  if (alive) now.Send(Pack(x));
  if (kNorm && blocks > 1) ClusterWait();
  for (int turn = 0; row < p.rows; ++turn, row += step) {
    if (turn > 0) load_residual(row);
    if (row + step < p.rows) {
      load(next, row + step);
      if (alive) next.Send(Pack(x));
    }
    float sum[kEight] = {};
    if (alive) alive = now.Receive(sum);
    if (alive) now.Clear();
    __syncwarp();
    if (alive && packet % kLanePackets == 0) now.StepCounter();
    if constexpr (kNorm) {
#pragma unroll
      for (int i = 0; i < kEight; ++i) sum[i] += residual[i];
      if (holds) {
        StoreEight(p.residual + row * p.residual_stride + at, count, p.vectors, sum);
      }
      const float squares = ClusterSum(holds ? AddSquares(sum, 0) : 0, partial[turn % 2]);
      const float scale = 1.0f / sqrtf(squares / static_cast<float>(p.width) + p.eps);
      Normalise(sum, scale, weight);
      auto* const out = static_cast<__nv_bfloat16*>(p.out) + row * p.out_stride + at;
      if (holds) StoreEight(out, count, p.vectors, sum);
      const NormCopies& copies = p.copies;
      if (copies.ordered != nullptr) WriteOrdered(copies.ordered, row, p.width, at, holds, sum);
      if (copies.codes != nullptr) {
        WriteCodes(copies.codes, copies.scales, row, p.width, at, holds, sum);
      }
    } else if (alive) {
      StoreEight(static_cast<X*>(p.x) + row * p.x_stride + at, count, p.vectors, sum);
    }
    now.TakeFrom(next);
  }
}

using Kernel = void (*)(SumParams);

template <int kRanks, typename X>
Kernel KernelOf(bool two_shot, bool norm) {
  if (two_shot) return norm ? SumKernel<kRanks, true, true, X> : SumKernel<kRanks, true, false, X>;
  return norm ? SumKernel<kRanks, false, true, X> : SumKernel<kRanks, false, false, X>;
}

template <typename X>
Kernel KernelFor(int64_t ranks, bool two_shot, bool norm) {
  if (ranks <= 2) return KernelOf<2, X>(two_shot, norm);
  if (ranks <= 4) return KernelOf<4, X>(two_shot, norm);
  return KernelOf<kPeersMax, X>(two_shot, norm);
}

Kernel KernelFor(int64_t ranks, bool two_shot, bool norm, bool bf16) {
  return bf16 ? KernelFor<__nv_bfloat16>(ranks, two_shot, norm)
              : KernelFor<float>(ranks, two_shot, norm);
}

int ThreadsOf(int64_t packets, int blocks_of_row) {
  const int64_t warps = (packets + kLanePackets - 1) / kLanePackets;
  return static_cast<int>((warps + blocks_of_row - 1) / blocks_of_row) * 32;
}

}  // namespace

int BlocksOfRow(int64_t packets, int wanted) {
  int blocks = 1;
  while (blocks < 8 && (blocks < wanted || ThreadsOf(packets, blocks) > kThreadsMax)) blocks *= 2;
  BT_CHECK(ThreadsOf(packets, blocks) <= kThreadsMax);
  return blocks;
}

cudaError_t SumBlocksMax(const SumRegion& region,
                         int blocks_of_row,
                         int multiprocessors,
                         int* blocks) {
  *blocks = 0;
  int device = 0, of_device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&of_device, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  for (int form = 0; form < 8; ++form) {
    const Kernel kernel =
        KernelFor(region.ranks, (form & 1) != 0, (form & 2) != 0, (form & 4) != 0);
    const int threads = ThreadsOf(region.packets, blocks_of_row);
    int clusters = 0;
    if (blocks_of_row > 1) {
      const PlacedConfig placed(dim3(static_cast<unsigned>(blocks_of_row)),
                                dim3(static_cast<unsigned>(threads)), 0, nullptr,
                                static_cast<unsigned>(blocks_of_row));
      error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &placed.config);
      // It is asked of the device; a share has at most its part.
      clusters = clusters * multiprocessors / of_device;
    } else {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&clusters, kernel, threads, 0);
      clusters *= multiprocessors;
    }
    if (error != cudaSuccess) return error;
    const int fit = clusters * blocks_of_row;
    if (*blocks == 0 || fit < *blocks) *blocks = fit;
  }
  return cudaSuccess;
}

void LaunchSum(const LaunchStream& stream,
               SumForm form,
               const SumShape& shape,
               const SumParams& params) {
  const bool two_shot = form == SumForm::kTwoShot;
  BT_CHECK(params.rows <= (two_shot ? params.region.rows_two_shot : params.region.rows_one_shot));
  if (params.rows == 0) return;
  const int rows_at_once = std::max(shape.blocks_max / shape.blocks_of_row, 1);
  const int blocks = std::min(params.rows, rows_at_once) * shape.blocks_of_row;
  const Kernel kernel =
      KernelFor(params.region.ranks, two_shot, params.out != nullptr, params.x_bf16);
  const int threads = ThreadsOf(params.region.packets, shape.blocks_of_row);
  CheckCuda(LaunchPlaced("sum of ranks", kernel, dim3(static_cast<unsigned>(blocks)),
                         dim3(static_cast<unsigned>(threads)), 0, stream,
                         shape.blocks_of_row > 1 ? static_cast<unsigned>(shape.blocks_of_row) : 0,
                         params),
            "sum of ranks");
}

}  // namespace baltoro::cuda
