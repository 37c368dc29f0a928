// The kernel of tens of rows (bf16_rows128.h): rings of TMA stages, warpgroup products, sums over a
// cluster of blocks.

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/bf16_rows128_internal.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/rope_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kStep = kBf16Rows128Step;
constexpr int kStepBytes = kStep * 2;
constexpr int kGroupRows = kBf16Rows128GroupRows;
constexpr int kSplitMax = kBf16Rows128SplitMax;
constexpr int kAngles = kBf16Rows128Angles;

__device__ __forceinline__ void CopyBoxOnce(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(0), "l"(policy)
      : "memory");
}

// Together: until every block of the cluster is here. Says nothing of what they wrote: with
// `release` it would cost a fence of the whole card.
__device__ __forceinline__ void ArriveAtCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitForCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// `address` of this block's shared memory, in that of block `rank` of the cluster.
__device__ __forceinline__ uint32_t InBlock(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// Both addresses of one block; its mbarrier counts the eight bytes once they are there.
__device__ __forceinline__ void SendPair(uint32_t to, uint32_t barrier, float2 pair) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(to),
      "f"(pair.x), "f"(pair.y), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ float2 LoadPair(uint32_t address) {
  const uint2 v = LoadShared2(address);
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

// Unit u of a thread's results: two neighbouring tokens of one row of weights, u / 2 eights of
// tokens on, row + 8 where u is odd. A lane and its neighbour four lanes on trade, so that each has
// two neighbouring rows of weights, columns of the result, of one token.
struct Place {
  int token, column;  // of unit 0
  bool odd;

  __device__ __forceinline__ Place(int first_token, int first_row, int thread) {
    const int lane = thread % 32, g = lane / 4;
    odd = g % 2 != 0;
    token = first_token + lane % 4 * 2 + odd;
    column = first_row + thread / 32 * 16 + g - odd;
  }
  __device__ __forceinline__ int Token(int u) const { return token + u / 2 * 8; }
  __device__ __forceinline__ int Column(int u) const { return column + u % 2 * 8; }
  __device__ __forceinline__ float2 Trade(float2 sum) const {
    const float other = __shfl_xor_sync(~0u, odd ? sum.x : sum.y, 4);
    return odd ? make_float2(other, sum.y) : make_float2(sum.x, other);
  }
};

template <bool kRotates>
__device__ __forceinline__ void Store(const Bf16Rows128Params& p,
                                      const Bf16Rows128Matrix& m,
                                      int end_row,
                                      int token,
                                      int column,
                                      float2 pair,
                                      float2 angle) {
  if (token >= p.rows || column >= end_row) return;
  if (kRotates && column % p.rotation.head >= p.rotation.nope) pair = Rotate(pair, angle);
  const int64_t at = token * m.out_stride + column;
  if (m.bf16) {
    *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(m.out) + at) =
        hopper::PackBf16(pair.x, pair.y);
  } else {
    *reinterpret_cast<float2*>(static_cast<float*>(m.out) + at) = pair;
  }
}

template <bool kRotates>
__device__ __forceinline__ float2 LoadAngle(const Bf16Rows128Params& p, int token, int column) {
  if constexpr (kRotates) {
    const int in_head = column % p.rotation.head - p.rotation.nope;
    if (token < p.rows && in_head >= 0) return AngleOf(p.rotation, token, in_head / 2);
  }
  return make_float2(0, 0);
}

// Grid: strips of kGroups * 64 rows of weights times the blocks that share their columns; tiles of
// kN rows of x. kGroups warpgroups multiply, one warp asks for what they
// need, but for the first x, which thread 0 asks for.
template <int kGroups, int kN, bool kRotates>
__global__ void __launch_bounds__(128 * kGroups + 32, 2)
    Bf16Rows128Kernel(const __grid_constant__ Bf16Rows128Params p,
                      const __grid_constant__ Bf16Rows128Maps maps) {
  constexpr int kConsumers = 128 * kGroups;
  extern __shared__ __align__(1024) char memory[];
  // Kept in a register: ptxas would ask for the block's number in the cluster before each copy.
  uint32_t ring = SharedAddress(memory);
  asm volatile("" : "+r"(ring));
  const uint32_t inputs_at = ring + p.stages * p.stage_bytes;
  const uint32_t full = ring + p.barriers_at, consumed = full + 8 * p.stages,
                 input_full = consumed + 8 * p.stages, sums_full = input_full + 8 * p.inputs;
  const int split = 1 << p.log_split;
  const int rank = static_cast<int>(blockIdx.x) & (split - 1);
  int strip = static_cast<int>(blockIdx.x) >> p.log_split;
  const bool of_second = strip >= p.first.strips;
  if (of_second) strip -= p.first.strips;
  const Bf16Rows128Matrix& m = of_second ? p.second : p.first;
  const int first_row = strip * p.strip_rows, end_row = min(first_row + p.strip_rows, m.n);
  const int first_token = static_cast<int>(blockIdx.y) * kN;
  // Steps are dealt in turn, so that the blocks of a cluster together read up to 1 KB of a row.
  const int steps = (p.steps - rank + split - 1) >> p.log_split;
  const CUtensorMap* const map = of_second ? &maps.second : &maps.first;
  const auto ask = [&](int step, int stage, uint64_t policy) {
    BarrierExpectBytes(full + 8 * stage, p.strip_rows * kStepBytes);
    CopyBoxOnce(ring + stage * p.stage_bytes, map, full + 8 * stage, (rank + step * split) * kStep,
                first_row, policy);
  };
  const auto ask_input = [&](int step, int input) {
    BarrierExpectBytes(input_full + 8 * input, p.input_rows * kStepBytes);
    hopper::CopyBox(inputs_at + input * p.input_bytes, &maps.x, input_full + 8 * input,
                    (rank + step * split) * kStep, first_token, 0);
  };
  const int early = min(p.early, steps);
  if (threadIdx.x == 0) {
    hopper::PrefetchMap(map);
    hopper::PrefetchMap(&maps.x);
  } else if (threadIdx.x == kConsumers) {
    if (ring % 1024 != 0) __trap();
#pragma unroll 1
    for (int s = 0; s < p.stages; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(consumed + 8 * s, 4 * kGroups);
    }
#pragma unroll 1
    for (int s = 0; s < p.inputs; ++s) BarrierInit(input_full + 8 * s, 1);
    BarrierInit(sums_full, 1);
    hopper::FenceBarrierInit();
    // Of warps that have rows of the strip.
    BarrierExpectBytes(sums_full, (p.strip_rows + 15) / 16 * 16 * kN * 4);
    const uint64_t policy = ReadOncePolicy();
#pragma unroll 1
    for (int s = 0; s < early; ++s) ask(s, s, policy);
  }
  __syncthreads();

  float sums[kN / 2];
  float2 angles[kAngles];
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
  const Place place(first_token, first_row + group * kGroupRows, thread);
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      const uint64_t policy = ReadOncePolicy();
      const int filled = min(p.stages, steps);
      // The rest as the first come in. Copies are done in the order in which they are asked for: x,
      // which another thread asks for as soon as it may, would come behind all weights that fit.
#pragma unroll 1
      for (int s = early; s < filled; ++s) {
        BarrierWait(full + 8 * (s - early), 0);
        ask(s, s, policy);
      }
      WaitForEarlierKernels();
      // A step is done with: its places go to those that come next there.
      int done = 0, input = 0;
      uint32_t parity = 0;
#pragma unroll 1
      for (int s = 0; s + min(p.stages, p.inputs) < steps; ++s) {
        BarrierWait(consumed + 8 * done, parity);
        if (s + p.inputs < steps) ask_input(s + p.inputs, input);
        if (s + p.stages < steps) ask(s + p.stages, done, policy);
        if (++done == p.stages) done = 0, parity ^= 1;
        if (++input == p.inputs) input = 0;
      }
    }
    __syncwarp();
  } else {
    if constexpr (kRotates) {
      // Positions and angles are older than the kernel ahead.
#pragma unroll
      for (int i = 0; i < kAngles; ++i) {
        const int u = (i << p.log_split) + rank;
        angles[i] = LoadAngle<kRotates>(p, place.Token(u), place.Column(u));
      }
    }
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) sums[i] = 0;
    if (threadIdx.x == 0) {
      WaitForEarlierKernels();
      AllowNextKernel();  // only now: see docs/kernels/decode-step.md
#pragma unroll 1
      for (int s = 0; s < min(p.inputs, steps); ++s) ask_input(s, s);
    }
    __syncwarp();
    int stage = 0, input = 0;
    uint32_t parity = 0, input_parity = 0;
    for (int s = 0; s < steps; ++s) {
      BarrierWait(full + 8 * stage, parity);
      BarrierWait(input_full + 8 * input, input_parity);
      // Both may go on behind the rows of the stage, into what makes sums that nobody stores.
      const uint32_t a =
          OperandAddress(ring + stage * p.stage_bytes + group * kGroupRows * kStepBytes);
      const uint32_t b = OperandAddress(inputs_at + input * p.input_bytes);
      hopper::Pin(sums);
      GroupFence();
#pragma unroll
      for (int i = 0; i < kStep / 16; ++i) {
        GroupMultiplyShared<kN>::Bf16(sums, OperandAt(a + 2 * i), OperandAt(b + 2 * i), 1);
      }
      GroupCommit();
      if (s > 0) {
        GroupWait<1>();
        const int before = stage == 0 ? p.stages - 1 : stage - 1;
        if (thread % 32 == 0) BarrierArrive(consumed + 8 * before);
      }
      if (++stage == p.stages) stage = 0, parity ^= 1;
      if (++input == p.inputs) input = 0, input_parity ^= 1;
    }
    GroupWait<0>();
    hopper::Pin(sums);
    WaitForEarlierKernels();  // every thread that writes
  }

  if (p.log_split == 0) {
    if (threadIdx.x >= kConsumers) return;
#pragma unroll
    for (int u = 0; u < kN / 4; ++u) {
      const float2 pair = place.Trade(make_float2(sums[2 * u], sums[2 * u + 1]));
      Store<false>(p, m, end_row, place.Token(u), place.Column(u), pair, make_float2(0, 0));
    }
    return;
  }
  // Unit u is added up by block u % split, where those of block r lie in order of r, on the stages:
  // all blocks must be done with these first.
  const int units = kN / 4 >> p.log_split;
  const uint32_t own = ring + threadIdx.x * 8;
  constexpr int kUnitBytes = kConsumers * 8;
  ArriveAtCluster();
  WaitForCluster();
  // Of a warp, 16 rows: some are of the strip.
  if (threadIdx.x >= kConsumers || static_cast<int>(threadIdx.x) / 32 * 16 >= p.strip_rows) return;
#pragma unroll
  for (int q = 0; q < kSplitMax; ++q) {
    const auto owner = static_cast<uint32_t>(q & (split - 1));
    const uint32_t barrier = InBlock(sums_full, owner);
    uint32_t to = InBlock(own + (rank * units + (q >> p.log_split)) * kUnitBytes, owner);
#pragma unroll
    for (int u = q; u < kN / 4; u += kSplitMax) {
      SendPair(to, barrier, make_float2(sums[2 * u], sums[2 * u + 1]));
      to += kSplitMax * kUnitBytes >> p.log_split;
    }
  }
  BarrierWait(sums_full, 0);
  const auto finish = [&](int i, float2 angle) {
    // Of all at once; the last one's again where there are fewer.
    float2 parts[kSplitMax];
#pragma unroll
    for (int r = 0; r < kSplitMax; ++r) {
      parts[r] = LoadPair(own + (min(r, split - 1) * units + i) * kUnitBytes);
    }
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int r = 0; r < kSplitMax; ++r) {
      if (r >= split) continue;
      sum.x += parts[r].x;
      sum.y += parts[r].y;
    }
    const int u = (i << p.log_split) + rank;
    Store<kRotates>(p, m, end_row, place.Token(u), place.Column(u), place.Trade(sum), angle);
  };
  if constexpr (kRotates) {
#pragma unroll
    for (int i = 0; i < kAngles; ++i) {
      if (i < units) finish(i, angles[i]);
    }
  } else {
#pragma unroll 2
    for (int i = 0; i < units; ++i) finish(i, make_float2(0, 0));
  }
}

using Kernel = void (*)(Bf16Rows128Params, Bf16Rows128Maps);

template <int kGroups>
Kernel KernelOf(int tile, bool rotates) {
  if (rotates && tile == 32) return Bf16Rows128Kernel<kGroups, 32, true>;
  if (rotates && tile == 64) return Bf16Rows128Kernel<kGroups, 64, true>;
  BT_CHECK(!rotates && (tile == 32 || tile == 64 || tile == 128));
  return tile == 32   ? Bf16Rows128Kernel<kGroups, 32, false>
         : tile == 64 ? Bf16Rows128Kernel<kGroups, 64, false>
                      : Bf16Rows128Kernel<kGroups, 128, false>;
}
// Of tall strips.
template <>
Kernel KernelOf<kBf16Rows128GroupsMax>(int tile, bool rotates) {
  BT_CHECK(!rotates && tile <= 64);
  return tile == 32 ? Bf16Rows128Kernel<kBf16Rows128GroupsMax, 32, false>
                    : Bf16Rows128Kernel<kBf16Rows128GroupsMax, 64, false>;
}

// A block's most; the same for all plans, as it is kept with the device, whoever launches there.
constexpr int kSharedMax = 227 << 10;

// With room for so many bytes of a block.
Kernel KernelOf(const Bf16Rows128Plan& plan, bool rotates, int shared) {
  BT_CHECK(shared <= kSharedMax);
  const Kernel kernel = plan.groups == 1   ? KernelOf<1>(plan.tile, rotates)
                        : plan.groups == 2 ? KernelOf<2>(plan.tile, rotates)
                                           : KernelOf<3>(plan.tile, rotates);
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedMax),
            "bf16_rows128");
  // So that blocks of the next kernel find room beside these.
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                 cudaSharedmemCarveoutMaxShared),
            "bf16_rows128");
  return kernel;
}

unsigned Threads(const Bf16Rows128Plan& plan) {
  return 128 * static_cast<unsigned>(plan.groups) + 32;
}

}  // namespace

int Bf16Rows128Clusters(const Bf16Rows128Plan& plan, int shared) {
  const Kernel kernel = KernelOf(plan, false, shared);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(plan.split));
  config.blockDim = dim3(Threads(plan));
  config.dynamicSmemBytes = static_cast<size_t>(shared);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CheckCuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "room for bf16_rows128");
  return clusters;
}

Status LaunchBf16Rows128(const Bf16Rows128Plan& plan,
                         const LaunchShape& shape,
                         const Bf16Rows128Params& p,
                         const Bf16Rows128Maps& maps,
                         const LaunchNote& note,
                         const LaunchStream& stream) {
  const dim3 grid(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y));
  return LaunchOverlapped(note, KernelOf(plan, p.rotation.head > 0, shape.shared), grid,
                          dim3(Threads(plan)), static_cast<size_t>(shape.shared), stream,
                          static_cast<unsigned>(shape.cluster), p, maps);
}

}  // namespace baltoro::cuda
