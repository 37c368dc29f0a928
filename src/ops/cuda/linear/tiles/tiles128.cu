// Products of many rows, bound by arithmetic: bf16, kFp8Block with quantised input, kInt8.
//
// A block takes 128 rows of weights by up to 128 rows of x at a time, a share of all such pieces;
// two warpgroups take 64 rows of weights each. Four warps fill a ring with both, 16 bytes a copy,
// 128 bytes of each row a stage. Codes are multiplied as they are; of kFp8Block the sum of a stage
// is scaled and added up in f32.
//
// Floor: 2 n k T operations over the card's rate for the type. Reading both operands from the L2
// takes about twice as long.

#include <algorithm>
#include <type_traits>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/linear/tiles/tiles128_multiply.cuh"
#include "ops/cuda/linear/tiles/tiles_params.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/ptx/group_multiply.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

using product::Params;

constexpr int kStages = 5;
constexpr int kConsumerWarps = 8;
constexpr int kProducers = 128;
constexpr int kThreads = 32 * kConsumerWarps + kProducers;
constexpr int kTileRows = kWideProductRows;  // of x
constexpr int kWeightRows = product::kWideWeightRows;
static_assert(kTileRows == 128);
constexpr int kOperandBytes = 128 * 128;
constexpr int kStageBytes = 2 * kOperandBytes;
constexpr int kOutPitch = 64 * 2 + 16;  // bytes of a warpgroup's row of results, on their way out
constexpr int kOutBytes = 2 * kTileRows * kOutPitch;
constexpr int kScalesBytes = kTileRows * 4;
constexpr int kSharedBytes = 1024 + kStages * (kStageBytes + kScalesBytes + 16) + kOutBytes;

struct Bf16Kind {
  using Sum = float;
  static constexpr bool kScaledSteps = false;
  template <int kN>
  static __device__ __forceinline__ void Add(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
    GroupMultiplyShared<kN>::Bf16(d, a, b, add);
  }
};
struct Fp8Kind {
  using Sum = float;
  static constexpr bool kScaledSteps = true;
  template <int kN>
  static __device__ __forceinline__ void Add(float (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
    GroupMultiplyShared<kN>::E4m3(d, a, b, add);
  }
};
struct Int8Kind {
  using Sum = int;
  static constexpr bool kScaledSteps = false;
  template <int kN>
  static __device__ __forceinline__ void Add(int (&d)[kN / 2], uint64_t a, uint64_t b, int add) {
    GroupMultiplyShared<kN>::Int8(d, a, b, add);
  }
};

// Keeps the compiler from moving uses of sums over a fence or a wait.
template <typename Sum, int kCount>
__device__ __forceinline__ void Pin(Sum (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if constexpr (std::is_same_v<Sum, int>) {
      asm volatile("" : "+r"(sums[i])::"memory");
    } else {
      asm volatile("" : "+f"(sums[i])::"memory");
    }
  }
}

struct Ring {
  uint32_t operands, scales, full, empty;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Weights() const { return operands + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t Input() const { return Weights() + kOperandBytes; }
  __device__ __forceinline__ uint32_t Scales() const { return scales + stage * kScalesBytes; }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

__device__ __forceinline__ MoeTile TileAt(const Params& p, int index) {
  if (p.tiles == nullptr) {
    return {0, index * kTileRows, min(kTileRows, p.rows - index * kTileRows), 0};
  }
  const int4 raw = __ldcg(reinterpret_cast<const int4*>(p.tiles) + index);
  return {raw.x, raw.y, raw.z, 0};
}

__device__ __forceinline__ int Entry(const Params& p, int row) {
  return p.order == nullptr ? row : __ldcg(p.order + row);
}

__device__ __forceinline__ void Copy4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}

// The four producer warps: eight threads a row, rows thread / 8 and every 16th from there.
template <class Kind>
__device__ void Produce(const Params& p, int units, Ring ring) {
  constexpr int kStep = kProducers / 8, kRows = kTileRows / kStep;
  const int thread = threadIdx.x - 32 * kConsumerWarps;
  const int row = thread / 8, chunk = thread % 8;
  const uint32_t to_row = row * 128 + ((chunk ^ (row & 7)) << 4);
  for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
    const MoeTile tile = TileAt(p, unit / p.strips);
    const int first = unit % p.strips * kWeightRows;
    const char* weights = p.weights + tile.slot * p.slot_bytes + chunk * 16;
    const char* input = p.x + chunk * 16;
    uint32_t from_weights[kRows], from_input[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int at = row + kStep * i;
      from_weights[i] = static_cast<uint32_t>(min(first + at, p.n - 1) * p.row_bytes);
      const int mine = tile.begin + min(at, tile.count - 1);
      const int from = p.gather ? Entry(p, mine) / p.top_k : mine;
      from_input[i] = static_cast<uint32_t>(from);
    }
    const int scaled = tile.begin + min(thread, tile.count - 1);
    const int scaled_from = p.gather ? Entry(p, scaled) / p.top_k : scaled;
    const float* scales = Kind::kScaledSteps
                              ? p.x_scales + static_cast<int64_t>(scaled_from) * p.x_scales_stride
                              : nullptr;
    for (int step = 0; step < p.steps; ++step, weights += 128, input += 128, ++scales) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      const uint32_t to = ring.Weights() + to_row;
#pragma unroll
      for (int i = 0; i < kRows; ++i) Copy16(to + i * kStep * 128, weights + from_weights[i]);
      const uint32_t to_input = ring.Input() + to_row;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (row + kStep * i >= tile.count) break;
        Copy16(to_input + i * kStep * 128, input + from_input[i] * p.x_row_bytes);
      }
      if (Kind::kScaledSteps) Copy4(ring.Scales() + thread * 4, scales);
      asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(ring.Full())
                   : "memory");
      ring.Next();
    }
  }
}

// Where a tile's results go, in shared memory.
struct Targets {
  int32_t row[kTileRows];
  float factor[kTileRows];
};

__device__ __forceinline__ float2 LoadShared2f(uint32_t address) {
  const uint2 v = LoadShared2(address);
  return make_float2(__uint_as_float(v.x), __uint_as_float(v.y));
}

// A warpgroup's 64 rows of weights by kN rows of x.
template <int kN>
__device__ __forceinline__ void StorePiece(const Params& p,
                                           int count,
                                           int first,
                                           const Targets& targets,
                                           uint32_t staging,
                                           const float (&acc)[kN / 2]) {
  const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
  if (!p.out_bf16) {
    const int low = first + warp * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) {
      const int column = i / 4 * 8 + lane % 4 * 2 + i % 2;
      const int row = low + (i % 4 < 2 ? 0 : 8);
      if (column >= count || row >= p.n) continue;
      static_cast<float*>(p.out)[static_cast<int64_t>(targets.row[column]) * p.out_stride + row] =
          acc[i] * targets.factor[column];
    }
    return;
  }
  // Through shared memory, so that a row of results is written 16 bytes at a time.
  const uint32_t to =
      staging + (lane / 16 * 8 + lane % 8) * kOutPitch + warp * 32 + lane / 8 % 2 * 16;
#pragma unroll
  for (int j = 0; j < kN / 8; j += 2) {
    uint32_t pairs[4];
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const int column = (j + m / 2) * 8 + lane % 4 * 2;
      const int at = (j + m / 2) * 4 + m % 2 * 2;
      pairs[m] = hopper::PackBf16(acc[at] * targets.factor[column],
                                  acc[at + 1] * targets.factor[column + 1]);
    }
    hopper::StoreMatricesTransposed(to + j * 8 * kOutPitch, pairs);
  }
  const int group = threadIdx.x / 128;
  hopper::NamedSync(2 + group, 128);
  for (int column = thread / 8; column < count; column += 16) {
    const int row = first + thread % 8 * 8;
    if (row >= p.n) break;
    const uint4 v = LoadShared4(staging + column * kOutPitch + thread % 8 * 16);
    auto* out = static_cast<__nv_bfloat16*>(p.out) +
                static_cast<int64_t>(targets.row[column]) * p.out_stride + row;
    *reinterpret_cast<uint4*>(out) = v;
  }
  hopper::NamedSync(2 + group, 128);  // before the next piece is written there
}

template <class Kind, int kN>
__device__ __forceinline__ void MultiplyPiece(const Params& p,
                                              const MoeTile& tile,
                                              int first,
                                              const Targets& targets,
                                              uint32_t staging,
                                              Ring& ring) {
  using Sum = typename Kind::Sum;
  const int group = threadIdx.x / 128, warp = threadIdx.x % 128 / 32, lane = threadIdx.x % 32;
  Sum sums[kN / 2];
  float scaled[kN / 2];
#pragma unroll
  for (int i = 0; i < kN / 2; ++i) {
    sums[i] = 0;
    scaled[i] = 0;
  }
  const char* weights = p.weights + tile.slot * p.slot_bytes;
  const float* scales = reinterpret_cast<const float*>(weights + p.scales);
  const int band = (first + warp * 16) / 8, last = (p.n - 1) / 8;
  const float* scale_low = scales + static_cast<int64_t>(min(band, last)) * p.steps;
  const float* scale_high = scales + static_cast<int64_t>(min(band + 1, last)) * p.steps;
  float low = 0, high = 0;
  if (Kind::kScaledSteps) {
    low = __ldg(scale_low);
    high = __ldg(scale_high);
  }
  for (int step = 0; step < p.steps; ++step) {
    BarrierWait(ring.Full(), ring.parity);
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    const uint64_t a = SwizzledOperand(ring.Weights() + group * 64 * 128);
    const uint64_t b = SwizzledOperand(ring.Input());
    Pin(sums);
    GroupFence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      Kind::template Add<kN>(sums, a + 2 * i, b + 2 * i, Kind::kScaledSteps ? i : step + i);
    }
    GroupCommit();
    float next_low = 0, next_high = 0;
    if (Kind::kScaledSteps) {
      const int next = min(step + 1, p.steps - 1);
      next_low = __ldg(scale_low + next);
      next_high = __ldg(scale_high + next);
    }
    GroupWait<0>();
    Pin(sums);
    if constexpr (Kind::kScaledSteps) {
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
        const float2 x = LoadShared2f(ring.Scales() + (j * 8 + lane % 4 * 2) * 4);
        scaled[4 * j] += sums[4 * j] * (low * x.x);
        scaled[4 * j + 1] += sums[4 * j + 1] * (low * x.y);
        scaled[4 * j + 2] += sums[4 * j + 2] * (high * x.x);
        scaled[4 * j + 3] += sums[4 * j + 3] * (high * x.y);
      }
      low = next_low;
      high = next_high;
      hopper::FinishLoads();  // of the scales
    }
    __syncwarp();
    if (lane == 0) BarrierArrive(ring.Empty());
    ring.Next();
  }
  if constexpr (std::is_same_v<Sum, int>) {
    const int row = first + warp * 16 + lane / 4;
    const auto* biases = reinterpret_cast<const int32_t*>(weights + p.biases);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = min(row + 8 * half, p.n - 1);
      const int bias = p.biases == 0 ? 0 : __ldg(biases + at);
      const float scale = __ldg(scales + at);
#pragma unroll
      for (int j = 0; j < kN / 8; ++j) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int i = 4 * j + 2 * half + e;
          scaled[i] = static_cast<float>(sums[i] + bias) * scale;
        }
      }
    }
  } else if constexpr (!Kind::kScaledSteps) {
#pragma unroll
    for (int i = 0; i < kN / 2; ++i) scaled[i] = sums[i];
  }
  StorePiece<kN>(p, tile.count, first, targets, staging, scaled);
}

template <class Kind>
__global__ void __launch_bounds__(kThreads, 1) WideKernel(const __grid_constant__ Params p) {
  extern __shared__ char memory[];
  __shared__ Targets targets[2];
  Ring ring;
  ring.operands = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const uint32_t staging = ring.operands + kStages * kStageBytes;
  ring.scales = staging + kOutBytes;
  ring.full = ring.scales + kStages * kScalesBytes;
  ring.empty = ring.full + 8 * kStages;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages; ++s) {
      BarrierInit(ring.full + 8 * s, kProducers);
      BarrierInit(ring.empty + 8 * s, kConsumerWarps);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  WaitForEarlierKernels();
  AllowNextKernel();
  const int tiles = p.tiles == nullptr ? (p.rows + kTileRows - 1) / kTileRows : __ldcg(p.num_tiles);
  const int units = tiles * p.strips;
  // Registers move from the producers to the others; together they stay at 168 a thread.
  if (threadIdx.x >= 32 * kConsumerWarps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    Produce<Kind>(p, units, ring);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    const int group = threadIdx.x / 128;
    const uint32_t own = staging + group * kTileRows * kOutPitch;
    MoeTile tile = {};
    int index = -1, buffer = 0;
    for (int unit = blockIdx.x; unit < units; unit += gridDim.x) {
      if (unit / p.strips != index) {
        // Two buffers: nobody is more than one tile ahead of another.
        index = unit / p.strips;
        tile = TileAt(p, index);
        buffer ^= 1;
        if (threadIdx.x < kTileRows) {
          const int at = tile.begin + min(static_cast<int>(threadIdx.x), tile.count - 1);
          const int entry = Entry(p, at);
          targets[buffer].row[threadIdx.x] = p.scatter ? entry : at;
          float factor = p.route_weights == nullptr ? 1.0f : __ldg(p.route_weights + entry);
          if (std::is_same_v<typename Kind::Sum, int>) {
            const int from = p.gather ? entry / p.top_k : at;
            factor *= p.x_scales[static_cast<int64_t>(from) * p.x_scales_stride];
          }
          targets[buffer].factor[threadIdx.x] = factor;
        }
        hopper::NamedSync(1, 32 * kConsumerWarps);
      }
      const int first = unit % p.strips * kWeightRows + group * 64;
      if (tile.count <= 32) {
        MultiplyPiece<Kind, 32>(p, tile, first, targets[buffer], own, ring);
      } else if (tile.count <= 64) {
        MultiplyPiece<Kind, 64>(p, tile, first, targets[buffer], own, ring);
      } else if (tile.count <= 96) {
        MultiplyPiece<Kind, 96>(p, tile, first, targets[buffer], own, ring);
      } else {
        MultiplyPiece<Kind, 128>(p, tile, first, targets[buffer], own, ring);
      }
    }
  }
}

template <class Kind>
void Launch(const Params& p, const LaunchShape& shape, const LaunchStream& stream) {
  const auto kernel = WideKernel<Kind>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "shared memory of the wide product");
  const dim3 grid(static_cast<unsigned>(shape.x));
  const Status launched = LaunchOverlapped("tiles of 128 rows", kernel, grid, dim3(kThreads),
                                           kSharedBytes, stream, 1, p);
  CheckLaunch("tiles of 128 rows");
  BT_CHECK(launched.ok());
}

}  // namespace

void product::LaunchWide(WeightForm form,
                         const Params& p,
                         const TilesPlan& plan,
                         const LaunchStream& stream) {
  switch (form) {
    case WeightForm::kBf16:
      return Launch<Bf16Kind>(p, plan.launch, stream);
    case WeightForm::kFp8Block:
      return Launch<Fp8Kind>(p, plan.launch, stream);
    default:
      return Launch<Int8Kind>(p, plan.launch, stream);
  }
}

}  // namespace baltoro::cuda
