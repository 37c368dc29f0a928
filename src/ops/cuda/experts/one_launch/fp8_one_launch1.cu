// The FP8 bank of one token in one kernel: the choice of experts, both products, the shared
// experts' second product and the sum. As two kernels the memory has nothing to do from the last
// weights of gate/up to the first of down, and the second one waits for the end of the first; here
// down's weights are asked for where gate/up's were multiplied, and blocks hand each other the
// middle through words that tell that they are there (ptx/mail.cuh).
//
// A block, one a multiprocessor, has 16 rows of gate and of up of one expert, then 56 columns of
// the result. Parts of 8 steps of its gate/up rows go through a ring, a step a warp; some of them
// are asked for as soon as the experts are known, each of the others and down's behind them when
// one was multiplied: what is asked for at once comes at once, all of it late. A warp more chooses
// and multiplies what is the shared experts', two ask for what comes later.
//
// Floor: the bytes of the matrices over the card's read bandwidth.

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/one_launch/fp8_entries4_device.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/ptx/mail.cuh"

namespace baltoro::cuda {
namespace {

using namespace fp8_one_launch;  // NOLINT: this kernel's parts

constexpr int kBlocks = kOneLaunchBlocks, kWarps = 8, kAskers = 2,
              kThreads = 32 * (kWarps + 1 + kAskers);
constexpr int kHidden = kOneLaunchHidden, kSteps = kHidden / 128, kMiddle = 256,
              kFp8Rows256Steps = kMiddle / 128;

// Gate and up.
constexpr int kRows = kMiddle * kExpertsMax / kBlocks;  // of each of the two
constexpr int kParts = kSteps / kWarps, kPartBytes = kWarps * 128;
constexpr int kPitch = kPartBytes + 64;  // so that rows use all banks
constexpr int kSlots = 6, kSlotBytes = 2 * kRows * kPitch;
constexpr int kAhead = 4;  // parts that are asked for at first
constexpr int kStrips = 2 * kRows / 8, kAskedRows = 2 * kRows / kWarps;  // by a warp
constexpr int kScaleBytes = 2 * kSteps * 4;                              // of two strips
static_assert(kSteps == kParts * kWarps && kParts == kSlots + 1 && kRows == 16);

// Down: two matrices in each slot but the first, the shared experts' in the last one.
constexpr int kColumns = kHidden / kBlocks, kDownStrips = kColumns / 8;
constexpr int kMatrices = kExpertsMax + 1, kDownBytes = kColumns * kMiddle;
constexpr int kSummers = 32 * kMatrices;
static_assert(2 * kDownBytes <= kSlotBytes && 2 * (kSlots - 1) >= kMatrices);

constexpr int kCodes = kSlots * kSlotBytes, kBytes = kCodes + kHidden;

struct alignas(256) Board {
  uint64_t middle[kExpertsMax][kMiddle];
  uint32_t launches[kBlocks];  // so far, counted by each block for itself
};

struct Shared {
  alignas(16) float weights[kStrips][kSteps];
  alignas(16) float x[kSteps];
  float parts[kWarps][2 * kRows];
  alignas(16) char codes[kMatrices][kMiddle];
  float scales[kMatrices][kFp8Rows256Steps];
  float sums[kMatrices][kColumns];
  float route_weights[kExpertsMax];
  ChoiceShared choice;
  uint64_t full[kParts], down[kMatrices], known, empty[kParts];
};
constexpr int kBarriers = kParts + kMatrices + 1 + kParts;

__device__ __forceinline__ int DownAt(int matrix) {
  return (1 + matrix / 2) * kSlotBytes + matrix % 2 * kDownBytes;
}

__device__ __forceinline__ void MakeBarriers(Shared& shared) {
  const int i = threadIdx.x;
  if (i >= kBarriers) return;
  const uint32_t barrier = SharedAddress(shared.full) + 8 * i;
  BarrierInit(barrier, i < kBarriers - kParts ? 1 : kWarps);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  if (i < kParts) {
    BarrierExpectBytes(barrier, 2 * kRows * kPartBytes + (i == 0 ? 2 * kScaleBytes : 0));
  } else if (i < kParts + kMatrices) {
    BarrierExpectBytes(barrier, kDownBytes);
  } else if (i == kParts + kMatrices) {
    BarrierExpectBytes(barrier, kHidden + kSteps * 4);
  }
}

// Row `row` of the block's 2 kRows of part `part`.
__device__ __forceinline__ void AskForPart(
    uint32_t memory, uint32_t full, const char* w, int first, int row, int part) {
  const int in_matrix = first + row % kRows + row / kRows * kMiddle;
  CopyBulk(memory + part % kSlots * kSlotBytes + row * kPitch,
           w + static_cast<int64_t>(in_matrix) * kHidden + part * kPartBytes, kPartBytes,
           full + 8 * part, ReadOncePolicy());
}

// By the warps but the last: the block's rows of the middle, told to all blocks.
__device__ __forceinline__ void MultiplyFirst(
    uint32_t memory, Shared& shared, Board& board, int own, int first, uint32_t tag) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t full = SharedAddress(shared.full), empty = SharedAddress(shared.empty);
  float sums[kStrips][2] = {};
#pragma unroll 1
  for (int part = 0; part < kParts; ++part) {
    const int step = part * kWarps + warp;
    // The token is the first row of the matrix instruction; weights are its columns.
    uint4 x[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      x[j] = make_uint4(0, 0, 0, 0);
      if (lane < 4) x[j] = LoadShared4(memory + kCodes + step * 128 + j * 64 + lane * 16);
    }
    BarrierWait(full + 8 * part, 0);
    const uint32_t from =
        memory + part % kSlots * kSlotBytes + lane / 4 * kPitch + warp * 128 + lane % 4 * 16;
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      float products[2][4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        MultiplyWords(products[j], x[j], LoadShared4(from + s * 8 * kPitch + j * 64));
      }
      const float scale = shared.weights[s][step] * shared.x[step];
      sums[s][0] += (products[0][0] + products[1][0]) * scale;
      sums[s][1] += (products[0][1] + products[1][1]) * scale;
    }
    hopper::FinishLoads();
    __syncwarp();
    if (lane == 0) BarrierArrive(empty + 8 * part);
  }
  if (lane < 4) {
#pragma unroll
    for (int s = 0; s < kStrips; ++s) {
      shared.parts[warp][s * 8 + 2 * lane] = sums[s][0];
      shared.parts[warp][s * 8 + 2 * lane + 1] = sums[s][1];
    }
  }
  hopper::NamedSync(1, 32 * kWarps);
  if (threadIdx.x >= kRows) return;
  float gate = 0, up = 0;
#pragma unroll
  for (int i = 0; i < kWarps; ++i) {
    gate += shared.parts[i][threadIdx.x];
    up += shared.parts[i][kRows + threadIdx.x];
  }
  resident::Post(&board.middle[own][first + threadIdx.x], __float_as_uint(SiluTimes(gate, up)),
                 tag);
}

// By the last warps: part by part, what was not asked for at first, rows of each by each of them;
// then the pairs of down by the first of them. A copy is an instruction of one lane.
__device__ __forceinline__ void AskForRest(
    const SingleParams& p, uint32_t memory, Shared& shared, const char* w, bool mine, int first) {
  constexpr int kOfAsker = 2 * kRows / kAskers;
  const int lane = threadIdx.x % 32, asker = static_cast<int>(threadIdx.x) / 32 - kWarps - 1;
  const uint32_t empty = SharedAddress(shared.empty);
#pragma unroll 1
  for (int i = kAhead; i < kParts + kSlots - 1; ++i) {
    // The place of pair i - kParts was that of a part before the one that is waited for.
    if (mine && i - kAhead < kParts) BarrierWait(empty + 8 * (i - kAhead), 0);
    if (i < kParts) {
      if (mine && lane < kOfAsker) {
        AskForPart(memory, SharedAddress(shared.full), w, first, asker * kOfAsker + lane, i);
      }
      __syncwarp();
      continue;
    }
    const int matrix = 2 * (i - kParts) + lane;
    if (asker > 0 || lane >= 2 || matrix >= kMatrices) continue;
    const bool of_shared = matrix == kExpertsMax;
    const DownMatrix& m = of_shared ? p.shared_down : p.down;
    const int slot = of_shared ? 0 : p.experts.SlotOf(shared.choice.ids[matrix]);
    if (slot < 0) continue;
    CopyBulk(memory + DownAt(matrix),
             m.w + slot * m.slot_bytes + static_cast<int64_t>(blockIdx.x) * kDownBytes, kDownBytes,
             SharedAddress(&shared.down[matrix]), ReadOncePolicy());
  }
}

// The lane's eight columns of the input of the shared experts' second product.
__device__ __forceinline__ void LoadShared(const SingleParams& p, float (&v)[8]) {
  const __nv_bfloat16* const from = p.shared + threadIdx.x % 32 * 8;
  float up[8];
  WidenEight(__ldcg(reinterpret_cast<const uint4*>(from)), v);
  WidenEight(__ldcg(reinterpret_cast<const uint4*>(from + kMiddle)), up);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    v[i] = __bfloat162float(__float2bfloat16_rn(v[i] / (1.0f + expf(-v[i])) * up[i]));
  }
}

// A warp's matrix by its row of the middle: shared.sums. Lane s has the scales of strip s.
__device__ __forceinline__ void MultiplySecond(
    uint32_t memory, Shared& shared, const float (&v)[8], float2 scales, float factor) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  float scale;
  const uint2 rounded = RoundEight(v, scale);
  StoreShared2(SharedAddress(&shared.codes[warp][lane * 8]), rounded);
  if (lane % 16 == 0) shared.scales[warp][lane / 16] = scale;
  __syncwarp();
  BarrierWait(SharedAddress(&shared.down[warp]), 0);
  // Rows without gaps, odd ones with their halves swapped: as the end of fp8_entries4.cu.
  const int swap = lane / 4 % 2;
  const uint32_t weights = memory + DownAt(warp) + lane / 4 * kMiddle + lane % 4 * 16;
  float acc[kDownStrips][2] = {};
#pragma unroll
  for (int step = 0; step < kFp8Rows256Steps; ++step) {
    const float x_scale = shared.scales[warp][step];
    uint4 a[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      a[j] = make_uint4(0, 0, 0, 0);
      if (lane < 8) {
        a[j] = LoadShared4(SharedAddress(shared.codes[warp]) + step * 128 + (j ^ swap) * 64 +
                           lane % 4 * 16);
      }
    }
#pragma unroll
    for (int s = 0; s < kDownStrips; ++s) {
      float parts[2][4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        MultiplyWords(parts[j], a[j],
                      LoadShared4(weights + s * 8 * kMiddle + step * 128 + (j ^ swap) * 64));
      }
      const float by = __shfl_sync(~0u, step == 0 ? scales.x : scales.y, s) * x_scale;
      acc[s][0] += (parts[0][0] + parts[1][0]) * by;
      acc[s][1] += (parts[0][1] + parts[1][1]) * by;
    }
  }
  if (lane >= 8) return;
#pragma unroll
  for (int s = 0; s < kDownStrips; ++s) {
    // Row 0 has the even columns, row 1 the odd ones.
    float sum = (swap ? acc[s][1] : acc[s][0]) * factor;
    // Rounded as shares are that go through memory.
    if (warp != kExpertsMax) sum = __bfloat162float(__float2bfloat16_rn(sum));
    shared.sums[warp][s * 8 + lane % 4 * 2 + swap] = sum;
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    JoinedSingleKernel(const __grid_constant__ SingleParams p) {
  extern __shared__ __align__(128) char raw[];
  __shared__ Shared shared;
  const uint32_t memory = SharedAddress(raw);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool last = warp == kWarps, asks = warp > kWarps;
  const int own = static_cast<int>(blockIdx.x) * kRows / kMiddle;
  const int first = static_cast<int>(blockIdx.x) * kRows % kMiddle;
  MakeBarriers(shared);
  float4 bias[3];
  if (last) LoadChoiceBias(p.choice, bias);
  __syncthreads();
  WaitForEarlierKernels();
  if (last) Choose(p.choice, bias, shared.choice);
  AllowNextKernel();
  Board& board = *static_cast<Board*>(p.board);
  const uint32_t before = __ldcg(&board.launches[blockIdx.x]);
  if (threadIdx.x == 0) {
    const uint32_t known = SharedAddress(&shared.known);
    CopyPlain(memory + kCodes, p.codes, kHidden, known);
    CopyPlain(SharedAddress(shared.x), p.x_scales, kSteps * 4, known);
  }
  __syncthreads();

  const int slot = p.experts.SlotOf(shared.choice.ids[own]);
  const char* const w = p.w + slot * p.slot_bytes;
  const uint32_t full = SharedAddress(shared.full);
  if (slot >= 0 && warp < kWarps) {
    if (lane < kAskedRows) {
#pragma unroll 1
      for (int part = 0; part < kAhead; ++part) {
        AskForPart(memory, full, w, first, warp * kAskedRows + lane, part);
      }
    }
    if (warp < 2 && lane == 0) {
      const int strip = first / 8 + warp * kMiddle / 8;
      CopyPlain(SharedAddress(shared.weights[2 * warp]),
                w + p.scales + static_cast<int64_t>(strip) * kSteps * 4, kScaleBytes, full);
    }
  }
  __syncwarp();
  // Of the second product.
  const DownMatrix& m = last ? p.shared_down : p.down;
  const int held = last ? 0 : asks ? -1 : p.experts.SlotOf(shared.choice.ids[warp]);
  float2 scales = make_float2(0, 0);
  if (held >= 0 && lane < kDownStrips) {
    const char* const from = m.w + held * m.slot_bytes + m.scales;
    scales = __ldg(reinterpret_cast<const float2*>(from) + blockIdx.x * kDownStrips + lane);
  }
  const uint32_t tag = before + 1 == 0 ? 1 : before + 1;

  float v[8] = {}, factor = 1;
  if (asks) {
    AskForRest(p, memory, shared, w, slot >= 0, first);
  } else if (last) {
    LoadShared(p, v);
    const float weight = ChoiceWeight(p.choice, shared.choice);
    if (lane < kExpertsMax) {
      shared.route_weights[lane] = weight;
      if (blockIdx.x == 0) {
        p.choice.ids[lane] = shared.choice.ids[lane];
        p.choice.weights[lane] = weight;
      }
    }
    __syncwarp();
    asm volatile("bar.arrive 2, %0;" ::"r"(kSummers) : "memory");
  } else {
    BarrierWait(SharedAddress(&shared.known), 0);
    if (slot >= 0) MultiplyFirst(memory, shared, board, own, first, tag);
    __syncwarp();
    hopper::NamedSync(2, kSummers);  // the last warp has the weights of the experts
    factor = shared.route_weights[warp];
    if (held >= 0) {
      resident::Mail<4> mail;
      mail.Await(resident::Patience(resident::Conduct{}), tag, true,
                 [&](int i) { return &board.middle[warp][lane * 8 + 2 * i]; });
#pragma unroll
      for (int i = 0; i < 8; ++i) v[i] = mail.number(i / 2, i % 2);
    }
  }
  if (held >= 0) {
    MultiplySecond(memory, shared, v, scales, factor);
  } else if (!asks) {
    for (int i = lane; i < kColumns; i += 32) shared.sums[warp][i] = 0;
  }
  __syncthreads();
  if (threadIdx.x == 0) board.launches[blockIdx.x] = tag;
  if (threadIdx.x >= kColumns) return;
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMatrices; ++i) sum += shared.sums[i][threadIdx.x];
  p.out[blockIdx.x * kColumns + threadIdx.x] = sum;
}

}  // namespace

void fp8_one_launch::LaunchOneToken(const SingleParams& p, const LaunchStream& stream) {
  static_assert(sizeof(Board) <= BoardBytes(BoardOf::kFp8OneLaunch1));
  BT_CHECK(p.codes != nullptr && p.choice.logits != nullptr && p.board != nullptr);
  CheckCuda(
      cudaFuncSetAttribute(JoinedSingleKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
      "FP8 bank of one token");
  const Status launched = LaunchOverlapped("FP8 bank of one token", JoinedSingleKernel,
                                           dim3(kBlocks), dim3(kThreads), kBytes, stream, 1, p);
  CheckLaunch("FP8 bank of one token");
  BT_CHECK(launched.ok());
}

}  // namespace baltoro::cuda
