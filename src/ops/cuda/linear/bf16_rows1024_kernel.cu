// The kernel of hundreds of rows (bf16_rows1024.h): a ring of TMA stages, warpgroup products with
// rows of x as the first operand, sums over a cluster of blocks.

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/bf16_rows1024_internal.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/rope_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kStep = kBf16Rows1024Step;
constexpr int kStepBytes = kStep * 2;
constexpr int kTile = kBf16Rows1024Tile;
constexpr int kStagesMax = kBf16Rows1024StagesMax;
constexpr int kInputBytes = kTile * kStepBytes;
constexpr int kGroupBytes = 64 * kStepBytes;  // rows of x of a warpgroup
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 32;
constexpr int kAngles = 4;  // fours of a thread's results whose angles are loaded ahead
// Of a block: a quarter of the multiprocessor is left to the next kernel's first ones.
constexpr int kSharedMax = kBf16Rows1024SharedMax;

// Of a row of sums; the rows that half a warp stores together use all banks.
template <int kN>
constexpr int kPitch = (kN + 8) * 4;

struct Shared {
  alignas(8) uint64_t full[kStagesMax];
  uint64_t empty[kStagesMax];
  uint64_t received;
};

// Says nothing of what was written: with `release` it would cost a fence of the whole card.
__device__ __forceinline__ void MeetCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}

// `address` of this block's shared memory, in that of block `rank` of the cluster.
__device__ __forceinline__ uint32_t InBlock(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Only reads of shared memory go before: no fence, which would wait for the whole card.
__device__ __forceinline__ void ArriveInBlock(uint32_t barrier, int rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(InBlock(barrier, rank))
               : "memory");
}

// From this block's shared memory to another's, told to a barrier there.
__device__ __forceinline__ void CopyToBlock(uint32_t to,
                                            uint32_t from,
                                            uint32_t bytes,
                                            uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "r"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// A box to the same place in all blocks of `mask`, told to the same barrier of each.
__device__ __forceinline__ void CopyBoxToBlocks(uint32_t to,
                                                const CUtensorMap* map,
                                                uint32_t barrier,
                                                int x,
                                                int y,
                                                uint32_t mask,
                                                uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6, %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(0), "h"(static_cast<uint16_t>(mask)), "l"(policy)
      : "memory");
}

__device__ __forceinline__ uint64_t NormalPolicy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// A stage of the ring, and whether it has come round an odd number of times.
struct Stage {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next(int stages) {
    if (++index == stages) index = 0, parity ^= 1;
  }
};

// What a block multiplies: steps [first, first + count) of a strip and a tile.
struct Work {
  int strip, first, count;
  int first_row;   // of x
  int part, tile;  // of the cluster; its rank is tile * parts + part
};

// Of p.steps, those of the parts before `part`.
__device__ __forceinline__ int StepsBefore(const Bf16Rows1024Params& p, int part) {
  return p.steps * part * p.part_inverse >> 16;
}

// One lane: all boxes of the block's steps, in turn. Of two tiles each fetches half of the weights
// for both.
template <int kN>
__device__ __forceinline__ void Feed(const Bf16Rows1024Params& p,
                                     const CUtensorMap* map_w,
                                     const CUtensorMap* map_x,
                                     Shared& shared,
                                     uint32_t ring,
                                     const Work& work) {
  constexpr int kStage = kInputBytes + kN * kStepBytes;
  const uint64_t policy = p.once ? ReadOncePolicy() : NormalPolicy();
  const int half = work.tile * (kN / 2);
  const uint32_t mask = 1u << work.part | 1u << (work.part + p.parts);
  const auto ask = [&](int i, int stage) {
    const uint32_t full = SharedAddress(&shared.full[stage]);
    const uint32_t to = ring + stage * kStage + kInputBytes + half * kStepBytes;
    const int column = (work.first + i) * kStep, row = work.strip * kN + half;
    BarrierExpectBytes(full, kStage);
    if (p.tiles == 2) {
      CopyBoxToBlocks(to, map_w, full, column, row, mask, policy);
    } else {
      hopper::CopyBox(to, map_w, full, column, row, 0, policy);
    }
  };
  const auto ask_rows = [&](int i, int stage) {
    hopper::CopyBox(ring + stage * kStage, map_x, SharedAddress(&shared.full[stage]),
                    (work.first + i) * kStep, work.first_row, 0);
  };
  const int ahead = min(p.stages, work.count);
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) ask(i, i);
  hopper::PrefetchMap(map_x);
  WaitForEarlierKernels();
#pragma unroll 1
  for (int i = 0; i < ahead; ++i) ask_rows(i, i);
  Stage stage;
#pragma unroll 1
  for (int i = ahead; i < work.count; ++i, stage.Next(p.stages)) {
    BarrierWait(SharedAddress(&shared.empty[stage.index]), stage.parity);
    ask(i, stage.index);
    ask_rows(i, stage.index);
  }
}

template <int kN>
__device__ __forceinline__ void MultiplySteps(float (&sums)[kN / 2],
                                              const Bf16Rows1024Params& p,
                                              Shared& shared,
                                              uint32_t ring,
                                              const Work& work) {
  constexpr int kStage = kInputBytes + kN * kStepBytes;
  const int group = static_cast<int>(threadIdx.x) / 128;
  const int other = (1 - work.tile) * p.parts + work.part;
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) sums[i] = 0;
  Stage stage, last;
#pragma unroll 1
  for (int s = 0; s < work.count; ++s) {
    BarrierWait(SharedAddress(&shared.full[stage.index]), stage.parity);
    const uint32_t rows = ring + stage.index * kStage;
    const uint64_t a = SwizzledOperand(rows + group * kGroupBytes);
    const uint64_t b = SwizzledOperand(rows + kInputBytes);
    hopper::Pin(sums);
    GroupFence();
#pragma unroll
    for (int i = 0; i < kStep / 16; ++i) {
      GroupMultiplyShared<kN>::Bf16(sums, a + 2 * i, b + 2 * i, 1);
    }
    GroupCommit();
    if (s > 0) {
      GroupWait<1>();
      if (threadIdx.x % 32 == 0) {
        const uint32_t empty = SharedAddress(&shared.empty[last.index]);
        BarrierArrive(empty);
        if (p.tiles == 2) ArriveInBlock(empty, other);
      }
      last.Next(p.stages);
    }
    stage.Next(p.stages);
  }
  GroupWait<0>();
  hopper::Pin(sums);
}

// A thread has the same four columns of every row that it adds up, so that what depends on columns
// is found once. That code is short matters: a launch runs it once, and each line of it is fetched
// while everybody waits.
template <int kN>
struct Share {
  static constexpr int kFours = kN / 4;
  static constexpr int kRows = kConsumers / kFours;  // that threads have at once
  int row;                                           // of the block's share: the first
  int column;                                        // of the result
  int pair;                                          // of the rotated columns; below 0: of others

  __device__ __forceinline__ Share(const QueryRotation& rotation, int strip) {
    const int thread = static_cast<int>(threadIdx.x);
    row = thread / kFours;
    column = strip * kN + thread % kFours * 4;
    const int in_head = rotation.head > 0 ? column % rotation.head - rotation.nope : -1;
    pair = in_head < 0 ? -1 : in_head / 2;
  }
  // Of threads that have rows.
  __device__ __forceinline__ bool Works() const { return row < kRows; }
};

// In one instruction: the compiler does not see that these places are aligned.
__device__ __forceinline__ void Store(__nv_bfloat16* to, uint32_t low, uint32_t high) {
  asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
}
__device__ __forceinline__ void Store(float* to, float4 v) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w)
               : "memory");
}

// A block's share of a tile's rows: the parts' sums, in their order. `sums` of this block,
// `received` of the others one after the other.
template <int kN, bool kRotates>
__device__ __forceinline__ void AddUp(const Bf16Rows1024Params& p,
                                      const Bf16Rows1024Matrix& m,
                                      const Work& work,
                                      const char* sums,
                                      const char* received,
                                      const Share<kN>& share,
                                      RowAngles<kAngles>& angles) {
  const int begin = work.part * p.slice;
  const int rows = min(p.slice, min(kTile, p.rows - work.first_row) - begin);
  if (!share.Works() || share.column >= m.n) return;
  const bool rotates = kRotates && share.pair >= 0;
  const int in_strip = share.column - work.strip * kN;
  const int slice_bytes = p.slice * kPitch<kN>;
  const char* const own = sums + begin * kPitch<kN> + in_strip * 4;
  const char* const others = received + in_strip * 4;
  int64_t to = (work.first_row + begin + share.row) * m.out_stride + share.column;
  const auto finish = [&](int row, float2 first, float2 second) {
    float4 sum = make_float4(0, 0, 0, 0);
    const char* other = others + row * kPitch<kN>;
#pragma unroll 1
    for (int part = 0; part < p.parts; ++part) {
      const bool is_own = part == work.part;
      const float4 v = *reinterpret_cast<const float4*>(is_own ? own + row * kPitch<kN> : other);
      if (!is_own) other += slice_bytes;
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
    if (rotates) {
      const float2 low = Rotate(make_float2(sum.x, sum.y), first);
      const float2 high = Rotate(make_float2(sum.z, sum.w), second);
      sum = make_float4(low.x, low.y, high.x, high.y);
    }
    if (m.bf16) {
      Store(static_cast<__nv_bfloat16*>(m.out) + to, hopper::PackBf16(sum.x, sum.y),
            hopper::PackBf16(sum.z, sum.w));
    } else {
      Store(static_cast<float*>(m.out) + to, sum);
    }
    to += Share<kN>::kRows * m.out_stride;
  };
  int turn = 0;
#pragma unroll 1
  for (int row = share.row; row < rows; row += Share<kN>::kRows, ++turn) {
    float2 first = {}, second = {};
    if (rotates) {
      if (turn >= kAngles) {
        RowAngles<1> late;
        late.Load(p.rotation, work.first_row + begin + row, 0, p.rows, share.pair);
        late.Take(first, second);
      } else {
        angles.Take(first, second);
      }
    }
    finish(row, first, second);
  }
}

// Grid: strips of kN rows of weights times the blocks of a cluster; tiles of x over those of a
// cluster. Two warpgroups multiply, one warp asks for what they need.
template <int kN, bool kRotates>
__global__ void __launch_bounds__(kThreads, 1)
    Bf16Rows1024Kernel(const __grid_constant__ Bf16Rows1024Params p,
                       const __grid_constant__ Bf16Rows1024Maps maps) {
  extern __shared__ __align__(1024) char memory[];
  __shared__ Shared shared;
  const int blocks = p.parts * p.tiles;
  uint32_t rank, cluster;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  int strip = static_cast<int>(cluster);
  const bool of_second = strip >= p.first.strips;
  if (of_second) strip -= p.first.strips;
  const Bf16Rows1024Matrix& m = of_second ? p.second : p.first;
  Work work;
  work.strip = strip;
  work.tile = static_cast<int>(rank) >= p.parts ? 1 : 0;
  work.part = static_cast<int>(rank) - work.tile * p.parts;
  work.first = StepsBefore(p, work.part);
  work.count = StepsBefore(p, work.part + 1) - work.first;
  work.first_row = (static_cast<int>(blockIdx.y) * p.tiles + work.tile) * kTile;
  const uint32_t ring = SharedAddress(memory);
  char* const received = memory + p.parts * p.slice * kPitch<kN>;
  const uint32_t slice_bytes = p.slice * kPitch<kN>;
  const uint32_t arrived = SharedAddress(&shared.received);
  if (threadIdx.x == 0) {
    if (ring % 1024 != 0) __trap();
    for (int s = 0; s < p.stages; ++s) {
      BarrierInit(SharedAddress(&shared.full[s]), 1);
      BarrierInit(SharedAddress(&shared.empty[s]), kConsumers / 32 * p.tiles);
    }
    BarrierInit(arrived, 1);
    hopper::FenceBarrierInit();
    BarrierExpectBytes(arrived, (p.parts - 1) * slice_bytes);
  }
  __syncthreads();
  if (blocks > 1) MeetCluster();  // behind the fence of the barriers' initialisation
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      Feed<kN>(p, of_second ? &maps.second : &maps.first, &maps.x, shared, ring, work);
    }
    __syncwarp();
    if (p.parts > 1) MeetCluster();
    if (blocks > 1) MeetCluster();
    return;
  }
  const Share<kN> share(p.rotation, strip);
  RowAngles<kAngles> angles;
  if constexpr (kRotates) {
    // Positions and angles are older than the kernel ahead.
    if (share.pair >= 0) {
      angles.Load(p.rotation, work.first_row + work.part * p.slice + share.row, Share<kN>::kRows,
                  p.rows, share.pair);
    }
  }
  WaitForEarlierKernels();  // every thread that writes
  AllowNextKernel();        // only now: see docs/kernels/decode-step.md

  float sums[kN / 2];
  MultiplySteps<kN>(sums, p, shared, ring, work);
  hopper::NamedSync(1, kConsumers);  // no stage is in use any more
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  char* const own = memory + (thread / 32 * 16 + lane / 4) * kPitch<kN> + lane % 4 * 8;
#pragma unroll
  for (int i = 0; i < kN / 2; i += 2) {
    *reinterpret_cast<float2*>(own + i % 4 / 2 * 8 * kPitch<kN> + i / 4 * 32) =
        make_float2(sums[i], sums[i + 1]);
  }
  if (p.parts > 1) {
    hopper::FenceAsyncProxy();
    hopper::NamedSync(1, kConsumers);
    MeetCluster();  // nor one of those that receive
    if (thread < p.parts && thread != work.part) {
      const int place = work.part < thread ? work.part : work.part - 1;
      const int other = work.tile * p.parts + thread;
      CopyToBlock(InBlock(SharedAddress(received) + place * slice_bytes, other),
                  SharedAddress(memory) + thread * slice_bytes, slice_bytes,
                  InBlock(arrived, other));
    }
    __syncwarp();
    BarrierWait(arrived, 0);
  } else {
    hopper::NamedSync(1, kConsumers);
  }
  AddUp<kN, kRotates>(p, m, work, memory, received, share, angles);
  // What this block sent has been received, and nobody tells it anything: it may end.
  __syncwarp();
  if (blocks > 1) MeetCluster();
}

using Kernel = void (*)(Bf16Rows1024Params, Bf16Rows1024Maps);

Kernel KernelOf(int columns, bool rotates) {
  switch (columns) {
    case 64:
      return rotates ? Bf16Rows1024Kernel<64, true> : Bf16Rows1024Kernel<64, false>;
    case 96:
      return rotates ? Bf16Rows1024Kernel<96, true> : Bf16Rows1024Kernel<96, false>;
    default:
      return rotates ? Bf16Rows1024Kernel<128, true> : Bf16Rows1024Kernel<128, false>;
  }
}

}  // namespace

Status LaunchBf16Rows1024(const Bf16Rows1024Plan& plan,
                          const LaunchShape& shape,
                          const Bf16Rows1024Params& params,
                          const Bf16Rows1024Maps& maps,
                          const LaunchNote& note,
                          const LaunchStream& stream) {
  const Kernel kernel = KernelOf(plan.columns, params.rotation.head > 0);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax),
            "bf16_rows1024");
  return LaunchOverlapped(note, kernel,
                          dim3(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y)),
                          dim3(kThreads), static_cast<size_t>(shape.shared), stream,
                          static_cast<unsigned>(shape.cluster), params, maps);
}

}  // namespace baltoro::cuda
