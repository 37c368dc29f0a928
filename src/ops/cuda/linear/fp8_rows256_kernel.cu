// Products of 9 rows and more with one FP8 matrix, 64 of them a tile: bound by the bytes of the
// weights and by reading the rows once for each strip of them.
//
// A cluster of up to eight blocks has a strip of kN rows of weights, each block a part of the
// columns, so that all multiprocessors have work and the rows are read by few of them. The rows of
// x are the first operand of wgmma, all 64 of them, the weights its columns; the copy engine
// fetches boxes of both, weights before the wait for the kernel ahead. The sums of the parts are
// copied from one block's shared memory to another's, each block adding up its share of the rows in
// the order of the parts: no results go through memory in f32, and no block waits for a barrier of
// the cluster that it does not have to.
//
// Floor: the bytes of the matrix over the card's read bandwidth.

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/fp8_rows256_internal.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/rope_device.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kRowsMax = kFp8Rows256TileRows;
constexpr int kConsumers = 128;
constexpr int kThreads = kConsumers + 32;
constexpr int kStages = kMiddleStages;
constexpr int kStepsMax = kFp8Rows256StepsMax;
// Of a stage, whatever of it are rows of x: the sums of the others are stored nowhere.
constexpr int kInputBytes = kRowsMax * 128;
// Fours of a thread's results whose angles are loaded ahead: of strips of 64 all that it can have.
constexpr int kAngles = 8;

template <int kN>
constexpr int kWeightBytes = kN * 128;
template <int kN>
constexpr int kStageBytes = kInputBytes + kWeightBytes<kN>;
// Of a row of sums; the rows that a warp stores together use all banks.
template <int kN>
constexpr int kPitch = (kN + 8) * 4;

template <int kN>
struct Shared {
  alignas(16) float weights[kStepsMax][kN / 8];
  float x[kStepsMax][kRowsMax];
  alignas(8) uint64_t full[kStages];
  uint64_t empty[kStages];
  uint64_t received;
};

__device__ __forceinline__ void ArriveCluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// Where nothing that was written before matters to the others.
__device__ __forceinline__ void ArriveClusterRelaxed() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void WaitCluster() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ __forceinline__ uint32_t AddressAt(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
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

// A stage of the ring, and whether it has come round an even number of times.
struct Stage {
  int index = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++index == kStages) index = 0, parity ^= 1;
  }
};

// What a block multiplies: steps [first, first + count) of a strip.
struct Work {
  int strip, first, count;
  int first_row;     // of x
  int step_columns;  // 128 codes or 64 of bf16
};

// One lane: all boxes of the block's steps, in turn.
template <int kN>
__device__ __forceinline__ void Feed(const Fp8Rows256Params& p,
                                     const CUtensorMap* map_w,
                                     const CUtensorMap* map_x,
                                     Shared<kN>& shared,
                                     uint32_t ring,
                                     const Work& work) {
  const auto ask = [&](int i, int stage) {
    const uint32_t full = SharedAddress(&shared.full[stage]);
    BarrierExpectBytes(full, p.box_rows * 128 + kWeightBytes<kN>);
    hopper::CopyBox(ring + stage * kStageBytes<kN> + kInputBytes, map_w, full,
                    (work.first + i) * work.step_columns, work.strip * kN, 0);
  };
  const auto ask_rows = [&](int i, int stage) {
    hopper::CopyBox(ring + stage * kStageBytes<kN>, map_x, SharedAddress(&shared.full[stage]),
                    (work.first + i) * work.step_columns, work.first_row, 0);
  };
  const int ahead = min(kStages, work.count);
  for (int i = 0; i < ahead; ++i) ask(i, i);
  if (!p.early_inputs) WaitForEarlierKernels();
  for (int i = 0; i < ahead; ++i) ask_rows(i, i);
  Stage stage;
  for (int i = ahead; i < work.count; ++i, stage.Next()) {
    BarrierWait(SharedAddress(&shared.empty[stage.index]), stage.parity);
    ask(i, stage.index);
    ask_rows(i, stage.index);
  }
}

template <int kN, bool kBf16>
__device__ __forceinline__ void Multiply(float (&sums)[kN / 2], uint32_t rows, uint32_t weights) {
  const uint64_t a = SwizzledOperand(rows), b = SwizzledOperand(weights);
  hopper::Pin(sums);
  GroupFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (kBf16) {
      GroupMultiplyShared<kN>::Bf16(sums, a + 2 * i, b + 2 * i, i);
    } else {
      GroupMultiplyShared<kN>::E4m3(sums, a + 2 * i, b + 2 * i, i);
    }
  }
  GroupCommit();
}

// scaled += sums * the scales of their rows and of the bands of weights.
template <int kN, bool kBf16>
__device__ __forceinline__ void AddScaled(float (&scaled)[kN / 2],
                                          float (&sums)[kN / 2],
                                          const Shared<kN>& shared,
                                          int step) {
  hopper::Pin(sums);
  if constexpr (kBf16) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) scaled[i] += sums[i];
    return;
  }
  const int row = static_cast<int>(threadIdx.x) / 32 * 16 + static_cast<int>(threadIdx.x) % 32 / 4;
  const float first = shared.x[step][row], second = shared.x[step][row + 8];
#pragma unroll
  for (int j = 0; j < kN / 8; ++j) {
    const float weight = shared.weights[step][j];
    const float low = first * weight, high = second * weight;
    scaled[4 * j] = fmaf(sums[4 * j], low, scaled[4 * j]);
    scaled[4 * j + 1] = fmaf(sums[4 * j + 1], low, scaled[4 * j + 1]);
    scaled[4 * j + 2] = fmaf(sums[4 * j + 2], high, scaled[4 * j + 2]);
    scaled[4 * j + 3] = fmaf(sums[4 * j + 3], high, scaled[4 * j + 3]);
  }
}

template <int kN, bool kBf16>
__device__ __forceinline__ void MultiplySteps(float (&scaled)[kN / 2],
                                              Shared<kN>& shared,
                                              uint32_t ring,
                                              int count) {
  float sums[2][kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) scaled[i] = 0;
  Stage next, last;
  const auto begin = [&](float(&to)[kN / 2]) {
    BarrierWait(SharedAddress(&shared.full[next.index]), next.parity);
    const uint32_t rows = ring + next.index * kStageBytes<kN>;
    Multiply<kN, kBf16>(to, rows, rows + kInputBytes);
    next.Next();
  };
  const auto finish = [&](int step, float(&here)[kN / 2]) {
    if (threadIdx.x % 32 == 0) BarrierArrive(SharedAddress(&shared.empty[last.index]));
    last.Next();
    AddScaled<kN, kBf16>(scaled, here, shared, step);
  };
  int step = 0;
  for (; step + 1 < count; step += 2) {
    begin(sums[0]);
    begin(sums[1]);
    GroupWait<1>();
    finish(step, sums[0]);
    GroupWait<0>();
    finish(step + 1, sums[1]);
  }
  if (step == count) return;
  begin(sums[0]);
  GroupWait<0>();
  finish(step, sums[0]);
}

// The first of two pairs of rotated columns from `column` on; below 0: these are not rotated.
__device__ __forceinline__ int PairOf(const QueryRotation& rotation, int column) {
  const int in_head = column % rotation.head - rotation.nope;
  return in_head < 0 ? -1 : in_head / 2;
}

// A block's share of the rows: the parts' sums, in their order. `sums` of this block, `received` of
// the others one after the other.
template <int kN, Fp8Rows256Form kForm>
__device__ __forceinline__ void AddUp(const Fp8Rows256Params& p,
                                      const Fp8Rows256Matrix& m,
                                      int strip,
                                      int rank,
                                      int first_row,
                                      const char* sums,
                                      const char* received,
                                      RowAngles<kAngles>& angles) {
  constexpr int kFours = kN / 4;
  // What is left of the last share belongs to the next tile.
  const int begin = rank * p.slice;
  const int rows = min(p.slice, min(kRowsMax, p.rows - first_row) - begin);
  int turn = 0;
  for (int i = threadIdx.x; i < rows * kFours; i += kConsumers, ++turn) {
    const int row = i / kFours, four = i % kFours;
    const int column = strip * kN + four * 4;
    if (column >= m.n) continue;
    float4 sum = {};
    for (int part = 0; part < p.parts; ++part) {
      const int other = part < rank ? part : part - 1;
      const char* const from = part == rank ? sums + (begin + row) * kPitch<kN>
                                            : received + (other * p.slice + row) * kPitch<kN>;
      const float4 v = reinterpret_cast<const float4*>(from)[four];
      sum.x += v.x;
      sum.y += v.y;
      sum.z += v.z;
      sum.w += v.w;
    }
    if constexpr (kForm == Fp8Rows256Form::kRotates) {
      const int pair = PairOf(p.rotation, column);
      if (pair >= 0) {
        float2 first, second;
        if (turn < kAngles) {
          angles.Take(first, second);
        } else {
          RowAngles<1> late;
          late.Load(p.rotation, first_row + begin + row, 0, p.rows, pair);
          late.Take(first, second);
        }
        const float2 low = Rotate(make_float2(sum.x, sum.y), first);
        const float2 high = Rotate(make_float2(sum.z, sum.w), second);
        sum = make_float4(low.x, low.y, high.x, high.y);
      }
    }
    const int64_t to = (first_row + begin + row) * m.out_stride + column;
    if (m.bf16) {
      *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(m.out) + to) =
          make_uint2(hopper::PackBf16(sum.x, sum.y), hopper::PackBf16(sum.z, sum.w));
    } else {
      *reinterpret_cast<float4*>(static_cast<float*>(m.out) + to) = sum;
    }
  }
}

template <int kN, Fp8Rows256Form kForm>
__global__ void __launch_bounds__(kThreads)
    Fp8Rows256Kernel(const __grid_constant__ Fp8Rows256Params p,
                     const __grid_constant__ Fp8Rows256Maps maps) {
  constexpr bool kTwoMatrices = kForm == Fp8Rows256Form::kTwoMatrices;
  extern __shared__ char memory[];
  __shared__ Shared<kN> shared;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rank = static_cast<int>(blockIdx.x) % p.parts;
  int strip = static_cast<int>(blockIdx.x) / p.parts;
  const bool of_second = kTwoMatrices && strip >= p.first.strips;
  if (of_second) strip -= p.first.strips;
  const Fp8Rows256Matrix& m = of_second ? p.second : p.first;
  const int first = m.steps * rank / p.parts, count = m.steps * (rank + 1) / p.parts - first;
  const int first_row = static_cast<int>(blockIdx.y) * kRowsMax;
  const uint32_t ring = (SharedAddress(memory) + 1023) / 1024 * 1024;
  char* const sums = memory + (ring - SharedAddress(memory)) + kStages * kStageBytes<kN>;
  char* const received = sums + p.parts * p.slice * kPitch<kN>;
  const uint32_t slice_bytes = p.slice * kPitch<kN>;
  const uint32_t arrived = SharedAddress(&shared.received);
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(SharedAddress(&shared.full[s]), 1);
      BarrierInit(SharedAddress(&shared.empty[s]), kConsumers / 32);
    }
    BarrierInit(arrived, 1);
    hopper::FenceBarrierInit();
    BarrierExpectBytes(arrived, (p.parts - 1) * slice_bytes);
  }
  __syncthreads();
  if (p.parts > 1) ArriveCluster();  // the barriers can be told
  if (warp == kConsumers / 32) {
    if (lane == 0) {
      Feed<kN>(p, of_second ? &maps.second_w : &maps.w, of_second ? &maps.second_x : &maps.x,
               shared, ring, {strip, first, count, first_row, of_second ? 64 : 128});
    }
    __syncwarp();
    WaitForEarlierKernels();
    if (p.parts == 1) return;
    WaitCluster();
    ArriveClusterRelaxed();
    WaitCluster();
    return;
  }
  // Scales of weights are there before the wait, as are positions and angles; those of rows behind
  // it, unless they are older than the kernel ahead.
  if (!of_second) {
    for (int i = threadIdx.x; i < count * (kN / 8); i += kConsumers) {
      const int band = min(strip * (kN / 8) + i / count, m.n / 8 - 1);
      shared.weights[i % count][i / count] =
          __ldg(m.scales + static_cast<int64_t>(band) * m.steps + first + i % count);
    }
  }
  RowAngles<kAngles> angles;
  if constexpr (kForm == Fp8Rows256Form::kRotates) {
    // A thread has the same columns of all its rows.
    constexpr int kFours = kN / 4, kRows = kConsumers / kFours;
    static_assert(kConsumers % kFours == 0);
    const int thread = static_cast<int>(threadIdx.x);
    const int pair = PairOf(p.rotation, strip * kN + thread % kFours * 4);
    if (pair >= 0) {
      const int begin = first_row + rank * p.slice;
      angles.Load(p.rotation, begin + thread / kFours, kRows, min(p.rows, begin + p.slice), pair);
    }
  }
  const auto wait = [] {
    WaitForEarlierKernels();
    AllowNextKernel();
  };
  if (!p.early_inputs) wait();
  if (!of_second) {
    const float* const x_scales = p.x_scales + static_cast<int64_t>(first_row) * m.steps + first;
    const int rows = min(p.rows - first_row, kRowsMax);
    for (int i = threadIdx.x; i < count * rows; i += kConsumers) {
      shared.x[i % count][i / count] =
          __ldcg(x_scales + static_cast<int64_t>(i / count) * m.steps + i % count);
    }
  }
  hopper::NamedSync(1, kConsumers);

  float scaled[kN / 2];
  if (of_second) {
    if constexpr (kTwoMatrices) MultiplySteps<kN, true>(scaled, shared, ring, count);
  } else {
    MultiplySteps<kN, false>(scaled, shared, ring, count);
  }
  if (p.early_inputs) wait();  // all that is left writes
  const int row = warp * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < kN / 2; i += 2) {
    const int at = row + i % 4 / 2 * 8;
    if (at >= p.parts * p.slice) continue;
    *reinterpret_cast<float2*>(sums + at * kPitch<kN> + (i / 4 * 8 + lane % 4 * 2) * 4) =
        make_float2(scaled[i], scaled[i + 1]);
  }
  if (p.parts == 1) {
    hopper::NamedSync(1, kConsumers);
    return AddUp<kN, kForm>(p, m, strip, rank, first_row, sums, received, angles);
  }
  hopper::FenceAsyncProxy();
  hopper::NamedSync(1, kConsumers);
  WaitCluster();
  if (static_cast<int>(threadIdx.x) < p.parts && static_cast<int>(threadIdx.x) != rank) {
    const int other = threadIdx.x, place = rank < other ? rank : rank - 1;
    CopyToBlock(AddressAt(SharedAddress(received) + place * slice_bytes, other),
                SharedAddress(sums) + other * slice_bytes, slice_bytes, AddressAt(arrived, other));
  }
  __syncwarp();
  BarrierWait(arrived, 0);
  ArriveClusterRelaxed();
  AddUp<kN, kForm>(p, m, strip, rank, first_row, sums, received, angles);
  WaitCluster();  // what this block sent has been received: it may end
}

using Kernel = void (*)(Fp8Rows256Params, Fp8Rows256Maps);

Kernel KernelOf(Fp8Rows256Form form, int32_t strip_rows) {
  switch (form) {
    case Fp8Rows256Form::kRotates:
      return strip_rows == 64 ? Fp8Rows256Kernel<64, Fp8Rows256Form::kRotates>
                              : Fp8Rows256Kernel<32, Fp8Rows256Form::kRotates>;
    case Fp8Rows256Form::kTwoMatrices:
      return strip_rows == 64 ? Fp8Rows256Kernel<64, Fp8Rows256Form::kTwoMatrices>
                              : Fp8Rows256Kernel<32, Fp8Rows256Form::kTwoMatrices>;
    default:
      return strip_rows == 96   ? Fp8Rows256Kernel<96, Fp8Rows256Form::kPlain>
             : strip_rows == 64 ? Fp8Rows256Kernel<64, Fp8Rows256Form::kPlain>
                                : Fp8Rows256Kernel<32, Fp8Rows256Form::kPlain>;
  }
}

}  // namespace

int32_t Fp8Rows256Clusters(int32_t strip_rows, int32_t parts, int32_t shared_bytes) {
  const Kernel kernel = KernelOf(Fp8Rows256Form::kPlain, strip_rows);
  CheckCuda(AllowShared(kernel, shared_bytes), "fp8_rows256");
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(parts), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(parts));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.attrs = &attribute;
  config.numAttrs = 1;
  int clusters = 0;
  CheckCuda(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), "room for fp8_rows256");
  return clusters;
}

Status LaunchFp8Rows256(Fp8Rows256Form form,
                        const Fp8Rows256Plan& plan,
                        const Fp8Rows256Params& p,
                        const Fp8Rows256Maps& maps,
                        const LaunchNote& note,
                        const LaunchStream& stream) {
  const Kernel kernel = KernelOf(form, plan.strip_rows);
  const LaunchShape& shape = plan.launch;
  CheckCuda(AllowShared(kernel, shape.shared), "fp8_rows256");
  return LaunchOverlapped(note, kernel,
                          dim3(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y)),
                          dim3(kThreads), static_cast<size_t>(shape.shared), stream,
                          static_cast<unsigned>(shape.cluster), p, maps);
}

}  // namespace baltoro::cuda
