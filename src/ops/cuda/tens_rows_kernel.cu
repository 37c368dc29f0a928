// The kernel of tens of rows (tens_rows.h): rings of TMA stages, warpgroup products, sums over a
// cluster of blocks.

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/product_wide_multiply.cuh"
#include "ops/cuda/rope_device.cuh"
#include "ops/cuda/tens_rows_internal.h"

namespace baltoro::cuda {
namespace {

constexpr int kStep = kTensRowsStep;
constexpr int kStepBytes = kStep * 2;
constexpr int kGroupRows = kTensRowsGroupRows;
constexpr int kSplitMax = kTensRowsSplitMax;
constexpr int kAngles = kTensRowsAngles;
// Of a block: two fit on a multiprocessor.
constexpr int kSharedMax = 113 * 1024;

template <int kGroups, int kN>
struct Ring {
  static constexpr int kWeightBytes = kGroups * kGroupRows * kStepBytes;
  static constexpr int kInputBytes = kN * kStepBytes;
  // Rows of x are asked for late, so that a few stages of them do.
  static constexpr int kInputs = kN <= 64 ? 4 : 3;
  static constexpr int kBudget = kSharedMax - 1024;
  static constexpr int kWeights = (kBudget - kInputs * kInputBytes) / kWeightBytes;
  static constexpr int kInputsAt = kWeights * kWeightBytes;
  static constexpr int kBarriersAt = kInputsAt + kInputs * kInputBytes;
  static constexpr int kBytes = kBarriersAt + 8 * (2 * kWeights + kInputs + 1);
  static_assert(kWeights >= kInputs && kBytes <= kSharedMax);
  // The blocks of a cluster bring their sums where the stages were.
  static_assert(kGroups * kGroupRows * kN * 4 <= kBarriersAt);
};

__device__ __forceinline__ void CopyBoxOnce(
    uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(0), "l"(policy)
      : "memory");
}

// Until every block of the cluster is here. Says nothing of what they wrote: with `release` it
// would cost a fence of the whole card.
__device__ __forceinline__ void MeetCluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
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

__device__ __forceinline__ void StorePair(uint32_t to, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(pair.x), "f"(pair.y) : "memory");
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
__device__ __forceinline__ void Store(const TensRowsParams& p,
                                      const TensRowsMatrix& m,
                                      int token,
                                      int column,
                                      float2 pair,
                                      float2 angle) {
  if (token >= p.rows || column >= m.n) return;
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
__device__ __forceinline__ float2 LoadAngle(const TensRowsParams& p, int token, int column) {
  if constexpr (kRotates) {
    const int in_head = column % p.rotation.head - p.rotation.nope;
    if (token < p.rows && in_head >= 0) return AngleOf(p.rotation, token, in_head / 2);
  }
  return make_float2(0, 0);
}

// Grid: strips of kGroups * 64 rows of weights times the blocks that share their columns; tiles of
// kN rows of x. kGroups warpgroups multiply, one warp asks for what they need.
template <int kGroups, int kN, bool kRotates>
__global__ void __launch_bounds__(128 * kGroups + 32, 2)
    TensRowsKernel(const __grid_constant__ TensRowsParams p,
                   const __grid_constant__ TensRowsMaps maps) {
  using R = Ring<kGroups, kN>;
  constexpr int kConsumers = 128 * kGroups;
  extern __shared__ __align__(1024) char memory[];
  const uint32_t ring = SharedAddress(memory);
  const uint32_t full = ring + R::kBarriersAt, consumed = full + 8 * R::kWeights,
                 input_full = consumed + 8 * R::kWeights, sums_full = input_full + 8 * R::kInputs;
  const int split = 1 << p.log_split;
  const int rank = static_cast<int>(blockIdx.x) & (split - 1);
  int strip = static_cast<int>(blockIdx.x) >> p.log_split;
  const bool of_second = strip >= p.first.strips;
  if (of_second) strip -= p.first.strips;
  const TensRowsMatrix& m = of_second ? p.second : p.first;
  const int first_row = strip * kGroups * kGroupRows;
  const int first_token = static_cast<int>(blockIdx.y) * kN;
  const int first_step = p.steps * rank >> p.log_split;
  const int steps = (p.steps * (rank + 1) >> p.log_split) - first_step;
  if (threadIdx.x == kConsumers) {
    if (ring % 1024 != 0) __trap();
    for (int s = 0; s < R::kWeights; ++s) {
      BarrierInit(full + 8 * s, 1);
      BarrierInit(consumed + 8 * s, 4 * kGroups);
    }
    for (int s = 0; s < R::kInputs; ++s) BarrierInit(input_full + 8 * s, 1);
    BarrierInit(sums_full, 1);
    hopper::FenceBarrierInit();
    BarrierExpectBytes(sums_full, kGroups * kGroupRows * kN * 4);
  }
  __syncthreads();

  float sums[kN / 2];
  float2 angles[kAngles];
  const int thread = threadIdx.x % 128, group = threadIdx.x / 128;
  const Place place(first_token, first_row + group * kGroupRows, thread);
  if (threadIdx.x >= kConsumers) {
    if (threadIdx.x == kConsumers) {
      const CUtensorMap* const map = of_second ? &maps.second : &maps.first;
      const uint64_t policy = ReadOncePolicy();
      const auto ask = [&](int step) {
        const int stage = step % R::kWeights;
        BarrierExpectBytes(full + 8 * stage, R::kWeightBytes);
        CopyBoxOnce(ring + stage * R::kWeightBytes, map, full + 8 * stage,
                    (first_step + step) * kStep, first_row, policy);
      };
      const auto ask_input = [&](int step) {
        const int stage = step % R::kInputs;
        BarrierExpectBytes(input_full + 8 * stage, R::kInputBytes);
        hopper::CopyBox(ring + R::kInputsAt + stage * R::kInputBytes, &maps.x,
                        input_full + 8 * stage, (first_step + step) * kStep, first_token, 0);
      };
      for (int s = 0; s < min(steps, R::kWeights); ++s) ask(s);
      hopper::PrefetchMap(&maps.x);
      WaitForEarlierKernels();
      AllowNextKernel();  // only now: see docs/kernels/decode-step.md
      for (int s = 0; s < min(steps, R::kInputs); ++s) ask_input(s);
      // Step s is done with: its places go to those that come next there.
      for (int s = 0; s + R::kInputs < steps; ++s) {
        BarrierWait(consumed + 8 * (s % R::kWeights), s / R::kWeights & 1);
        ask_input(s + R::kInputs);
        if (s + R::kWeights < steps) ask(s + R::kWeights);
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
    int stage = 0, input = 0;
    uint32_t parity = 0, input_parity = 0;
    for (int s = 0; s < steps; ++s) {
      BarrierWait(full + 8 * stage, parity);
      BarrierWait(input_full + 8 * input, input_parity);
      const uint64_t a =
          SwizzledOperand(ring + stage * R::kWeightBytes + group * kGroupRows * kStepBytes);
      const uint64_t b = SwizzledOperand(ring + R::kInputsAt + input * R::kInputBytes);
      hopper::Pin(sums);
      GroupFence();
#pragma unroll
      for (int i = 0; i < kStep / 16; ++i) {
        GroupMultiplyShared<kN>::Bf16(sums, a + 2 * i, b + 2 * i, 1);
      }
      GroupCommit();
      if (s > 0) {
        GroupWait<1>();
        const int before = stage == 0 ? R::kWeights - 1 : stage - 1;
        if (thread % 32 == 0) BarrierArrive(consumed + 8 * before);
      }
      if (++stage == R::kWeights) stage = 0, parity ^= 1;
      if (++input == R::kInputs) input = 0, input_parity ^= 1;
    }
    GroupWait<0>();
    hopper::Pin(sums);
    WaitForEarlierKernels();  // every thread that writes
  }

  // Unit u is added up by block u % split, where those of block r lie in order of r; first all
  // blocks must be done with their stages.
  const int units = kN / 4 >> p.log_split;
  const uint32_t own = ring + threadIdx.x * 8;
  constexpr int kUnitBytes = kConsumers * 8;
  if (p.log_split == 0) {
    if (threadIdx.x >= kConsumers) return;
    hopper::NamedSync(1, kConsumers);
#pragma unroll
    for (int u = 0; u < kN / 4; ++u) {
      StorePair(own + u * kUnitBytes, make_float2(sums[2 * u], sums[2 * u + 1]));
    }
  } else {
    MeetCluster();
    if (threadIdx.x >= kConsumers) return;
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
  }
  const auto finish = [&](int i, float2 angle) {
    float2 sum = make_float2(0, 0);
#pragma unroll
    for (int r = 0; r < kSplitMax; ++r) {
      if (r >= split) break;
      const float2 one = LoadPair(own + (r * units + i) * kConsumers * 8);
      sum.x += one.x;
      sum.y += one.y;
    }
    const int u = (i << p.log_split) + rank;
    Store<kRotates>(p, m, place.Token(u), place.Column(u), place.Trade(sum), angle);
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

template <int kGroups, int kN, bool kRotates>
Status LaunchForm(const TensRowsParams& p, const TensRowsMaps& maps, cudaStream_t stream) {
  const auto kernel = TensRowsKernel<kGroups, kN, kRotates>;
  constexpr int kBytes = Ring<kGroups, kN>::kBytes;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
            "tens of rows");
  const unsigned split = 1u << p.log_split;
  const dim3 grid(static_cast<unsigned>(p.first.strips + p.second.strips) * split,
                  static_cast<unsigned>((p.rows + kN - 1) / kN));
  return LaunchOverlapped("tens of rows", kernel, grid, dim3(128 * kGroups + 32), kBytes, stream,
                          split, p, maps);
}

template <int kGroups>
Status LaunchGroups(int tile,
                    const TensRowsParams& p,
                    const TensRowsMaps& maps,
                    cudaStream_t stream) {
  if (p.rotation.head > 0) {
    return tile == 32 ? LaunchForm<kGroups, 32, true>(p, maps, stream)
                      : LaunchForm<kGroups, 64, true>(p, maps, stream);
  }
  switch (tile) {
    case 32:
      return LaunchForm<kGroups, 32, false>(p, maps, stream);
    case 64:
      return LaunchForm<kGroups, 64, false>(p, maps, stream);
    default:
      return LaunchForm<kGroups, 128, false>(p, maps, stream);
  }
}

}  // namespace

Status LaunchTensRows(const TensRowsPlan& plan,
                      const TensRowsParams& params,
                      const TensRowsMaps& maps,
                      cudaStream_t stream) {
  return plan.groups == 1 ? LaunchGroups<1>(plan.tile, params, maps, stream)
                          : LaunchGroups<2>(plan.tile, params, maps, stream);
}

}  // namespace baltoro::cuda
