// The streaming form of the FP8 products (fp8_bank.h): few rows a matrix, bound by the bytes of the
// weights.
//
// The chosen matrices are dealt out among two blocks a multiprocessor (int4_digits_work.cuh). One
// warp asks the copy engine for weights, far ahead, 16 KB a stage; eight others each multiply 16
// rows by 128 columns of a stage: weights are the 16 rows of the matrix instruction, tokens its 8
// columns, both widened from e4m3 to f16, which is exact. Sums of 128 columns are scaled and added
// in f32. A unit of the work is a strip (gate and up) or 128 rows (down).
//
// Gate and up: a stage is 8 rows of each by 1,024 columns; the warps share a strip's columns and
// add up at its end. Down: a stage is 128 rows by 128 columns, a strip a warp.
//
// Floor: the bytes of the chosen matrices over the card's read bandwidth.

#include <cuda_fp8.h>

#include <algorithm>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/bank_device.cuh"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/experts/streaming/int4_digits_work.cuh"
#include "ops/cuda/launch/tensor_map.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/linear/tiles/tiles_forms.cuh"
#include "ops/cuda/ptx/hopper.cuh"

namespace baltoro::cuda {
namespace {

using product::E4m3ToF16;
using product::MultiplyAddF16;

constexpr int kWarps = 8;
constexpr int kThreads = 32 * (kWarps + 1);
constexpr int kStageBytes = kWarps * 2048;
constexpr int kMaxColumnTiles = kFp8StreamRows / 8;  // 8 tokens each
using Queue = WorkQueueOf<kFp8StreamRows>;
using Feeder = WorkFeederOf<kFp8StreamRows>;
template <bool kGated>
constexpr int kStages = kGated ? 5 : 6;
template <bool kGated>
constexpr int kPartialBytes = kGated
                                  ? kWarps* kMaxColumnTiles * 32 * static_cast<int>(sizeof(float4))
                                  : 0;
template <bool kGated>
constexpr int kSharedBytes = 1024 + kStages<kGated>*(kStageBytes + 16) + kPartialBytes<kGated> +
                             static_cast<int>(sizeof(Queue));

struct StreamParams {
  const char* scales;  // of the first matrix
  int64_t slot_bytes;
  int32_t n, half, steps;
  int32_t stages;  // of a unit
  WorkParams work;
  const char* x;
  int64_t x_row_bytes;
  const float* x_scales;
  void* out;
  int64_t out_stride;
  int32_t top_k;
  bool gather, scatter, x_f32;
  bool routed_before;  // as Fp8Product
  const float* route_weights;
};

// Where things are in shared memory: the ring, sums of the warps, barriers, the queue of runs.
template <bool kGated>
struct Ring {
  static constexpr int kCount = kStages<kGated>;
  static constexpr int kPartialsAt = kCount * kStageBytes;
  static constexpr int kBarriersAt = kPartialsAt + kPartialBytes<kGated>;

  uint32_t memory;
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kCount) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Data() const { return memory + stage * kStageBytes; }
  __device__ __forceinline__ uint32_t Full(int of) const { return memory + kBarriersAt + 8 * of; }
  __device__ __forceinline__ uint32_t Full() const { return Full(stage); }
  __device__ __forceinline__ uint32_t Empty(int of) const { return Full(of) + 8 * kCount; }
  __device__ __forceinline__ uint32_t Empty() const { return Empty(stage); }
  __device__ __forceinline__ uint32_t RunQueue() const { return Full(2 * kCount); }
};

__device__ __forceinline__ void CopyBox4(uint32_t to,
                                         const CUtensorMap* map,
                                         uint32_t barrier,
                                         uint64_t policy,
                                         int row,
                                         int step,
                                         int slot) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(0), "r"(row), "r"(step), "r"(slot), "l"(policy)
      : "memory");
}

// Stages that are left to ask for when the next piece is.
constexpr int kAskAhead = 2;

// By all lanes of its warp.
template <bool kGated>
__device__ void FeedRing(const StreamParams& p, const CUtensorMap* map, Ring<kGated> ring) {
  const bool leader = threadIdx.x % 32 == 0;
  const uint64_t policy = ReadOncePolicy();
  Feeder feeder(p.work, ring.RunQueue());
  UnitRun run;
  while (feeder.Next(run)) {
    int left = (run.last - run.first) * p.stages;
    const int ask = min(left - 1, kAskAhead);
    bool told = false;
    for (int u = run.first; u < run.last; ++u) {
      for (int s = 0; s < p.stages; ++s) {
        BarrierWait(ring.Empty(), ring.parity ^ 1);
        if (leader) {
          BarrierExpectBytes(ring.Full(), kStageBytes);
          // Rows and columns beyond the last arrive as zeros.
          if (kGated) {
            CopyBox4(ring.Data(), map, ring.Full(), policy, u * 8, s * kWarps, run.tile.slot);
            CopyBox4(ring.Data() + kStageBytes / 2, map, ring.Full(), policy, p.half + u * 8,
                     s * kWarps, run.tile.slot);
          } else {
            CopyBox4(ring.Data(), map, ring.Full(), policy, u * 16 * kWarps, s, run.tile.slot);
          }
        }
        __syncwarp();
        ring.Next();
        if (!told) feeder.Tell(run);
        told = true;
        if (--left == ask) feeder.AskAhead();
      }
    }
  }
  feeder.TellEnd();
}

// The lane's row among the eight of a band: so that the lanes that read together meet every bank
// once.
__device__ __forceinline__ int BandRow(int lane) {
  const int g = lane / 4;
  return g / 2 + g % 2 * 4;
}

__device__ __forceinline__ int Entry(uint32_t queue, uint32_t index, int row) {
  return ReadEntry<kFp8StreamRows>(queue, index, row);
}

// The rows of a tile as one thread sees them. Rows beyond the tile's count repeat its first row:
// the columns of the matrix instruction do not mix, and theirs are not stored.
template <int kN>
struct Rows {
  uint32_t in[kN];       // of this thread's first column, in 16 bytes
  int32_t first[kN][2];  // scales

  __device__ __forceinline__
  Rows(const StreamParams& p, const WorkRun& run, uint32_t queue, uint32_t index, int lane) {
    const auto source = [&](int i) {
      return p.gather ? Entry(queue, index, i) / p.top_k : run.begin + (i < run.count ? i : 0);
    };
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      in[n] = static_cast<uint32_t>(source(n * 8 + lane / 4)) *
                  static_cast<uint32_t>(p.x_row_bytes / 16) +
              lane % 4;
#pragma unroll
      for (int e = 0; e < 2; ++e) first[n][e] = source(n * 8 + lane % 4 * 2 + e) * p.steps;
    }
  }
};

// A step's codes of the rows.
template <int kN>
struct Input {
  uint4 codes[kN][2];
  float scales[kN][2];

  __device__ __forceinline__ void Load(const StreamParams& p, const Rows<kN>& rows, int step) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const char* from = p.x + static_cast<uint64_t>(rows.in[n]) * 16 + step * 128;
#pragma unroll
      for (int j = 0; j < 2; ++j)
        codes[n][j] = __ldcg(reinterpret_cast<const uint4*>(from) + j * 4);
#pragma unroll
      for (int e = 0; e < 2; ++e) scales[n][e] = __ldcg(p.x_scales + rows.first[n][e] + step);
    }
  }
};

// Four f32 as the codes of a word.
__device__ __forceinline__ uint32_t Codes(const float4& v, float undo) {
  const uint32_t even =
      __nv_cvt_float2_to_fp8x2(make_float2(v.x * undo, v.z * undo), __NV_SATFINITE, __NV_E4M3);
  const uint32_t odd =
      __nv_cvt_float2_to_fp8x2(make_float2(v.y * undo, v.w * undo), __NV_SATFINITE, __NV_E4M3);
  return even | odd << 16;
}

// A step of rows that are still f32, rounded here: a row's 128 columns are in four lanes.
template <int kN>
__device__ __forceinline__ void Round(
    const StreamParams& p, const WorkRun& run, int step, int lane, Input<kN>& input) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const int mine = n * 8 + lane / 4;
    const int row = run.begin + (mine < run.count ? mine : 0);
    const auto* from = reinterpret_cast<const float4*>(p.x + row * p.x_row_bytes +
                                                       static_cast<int64_t>(step) * 512) +
                       lane % 4 * 4;
    float4 v[8];
    float largest = 1e-4f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      v[i] = __ldcg(from + i / 4 * 16 + i % 4);
      largest = fmaxf(fmaxf(largest, fmaxf(fabsf(v[i].x), fabsf(v[i].y))),
                      fmaxf(fabsf(v[i].z), fabsf(v[i].w)));
    }
    for (int d = 1; d < 4; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    const float scale = __fdiv_rn(largest, 448.0f), undo = __fdiv_rn(1.0f, scale);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      input.codes[n][j] = make_uint4(Codes(v[4 * j], undo), Codes(v[4 * j + 1], undo),
                                     Codes(v[4 * j + 2], undo), Codes(v[4 * j + 3], undo));
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      input.scales[n][e] = __shfl_sync(~0u, scale, (lane % 4 * 2 + e) * 4);
    }
  }
}

// acc += 16 rows of weights (two bands of 8, in the 128-byte swizzle) by 128 columns.
template <int kN>
__device__ __forceinline__ void MultiplyTile(
    float (&acc)[kN][4], uint32_t low, uint32_t high, const Input<kN>& x, float2 scales, int lane) {
  const int row = BandRow(lane);
  float part[kN][4] = {};
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const uint32_t at = row * 128 + (((lane % 4 + 4 * j) ^ row) << 4);
    const uint4 a = LoadShared4(low + at), b = LoadShared4(high + at);
    const uint32_t words[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint2 first = E4m3ToF16(words[0][i]), second = E4m3ToF16(words[1][i]);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const uint4& piece = x.codes[n][j];
        const uint2 v = E4m3ToF16(i == 0 ? piece.x : i == 1 ? piece.y : i == 2 ? piece.z : piece.w);
        MultiplyAddF16(part[n], first.x, second.x, first.y, second.y, v.x, v.y);
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      acc[n][e] += part[n][e] * (scales.x * x.scales[n][e]);
      acc[n][2 + e] += part[n][2 + e] * (scales.y * x.scales[n][e]);
    }
  }
}

__device__ __forceinline__ float2
BandScales(const StreamParams& p, const float* scales, int low_row, int high_row, int step) {
  const int last = (p.n - 1) / 8;
  return make_float2(
      __ldg(scales + static_cast<int64_t>(min(low_row / 8, last)) * p.steps + step),
      __ldg(scales + static_cast<int64_t>(min(high_row / 8, last)) * p.steps + step));
}

__device__ __forceinline__ const float* ScalesOf(const StreamParams& p, const WorkRun& run) {
  return reinterpret_cast<const float*>(p.scales + run.slot * p.slot_bytes);
}

// The stage may be filled again.
template <bool kGated>
__device__ __forceinline__ void Release(const Ring<kGated>& ring, int lane) {
  hopper::FinishLoads();
  __syncwarp();
  if (lane == 0) BarrierArrive(ring.Empty());
}

__device__ __forceinline__ void ConsumerBarrier() {
  asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
}

template <bool kGated>
struct Progress {
  Ring<kGated> ring;
  uint32_t sums = 0;   // strips added up
  uint32_t index = 0;  // of the run
};

// Strips of gate and up, shared by the warps along the columns.
template <int kN>
__device__ __forceinline__ void MultiplyAcross(const StreamParams& p,
                                               const WorkRun& run,
                                               float4* partials,
                                               Progress<true>& progress) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Rows<kN> rows(p, run, progress.ring.RunQueue(), progress.index, lane);
  const float* scales = ScalesOf(p, run);
  const int last_step = p.steps - 1;
  constexpr bool kEarly = kN <= 2;  // inputs of the next stage in flight
  Ring<true> ring = progress.ring;
  uint32_t sums = progress.sums;
  Input<kN> next;
  float2 next_scales =
      BandScales(p, scales, run.first * 8, p.half + run.first * 8, min(warp, last_step));
  if (kEarly) next.Load(p, rows, min(warp, last_step));
  for (int unit = run.first; unit < run.last; ++unit, ++sums) {
    float acc[kN][4] = {};
    for (int s = 0; s < p.stages; ++s) {
      const float2 own_scales = next_scales;
      Input<kN> own = next;
      const bool ends = s + 1 == p.stages;
      const int step = min((ends ? 0 : (s + 1) * kWarps) + warp, last_step);
      const int strip = ends ? unit + 1 : unit;
      next_scales = BandScales(p, scales, strip * 8, p.half + strip * 8, step);
      if (kEarly) {
        next.Load(p, rows, step);
      } else {
        own.Load(p, rows, min(s * kWarps + warp, last_step));
      }
      BarrierWait(ring.Full(), ring.parity);
      const uint32_t low = ring.Data() + warp * 1024;
      MultiplyTile<kN>(acc, low, low + kStageBytes / 2, own, own_scales, lane);
      Release(ring, lane);
      ring.Next();
    }
    // The warps' sums. With two buffers one barrier a strip will do: whoever adds up has done so
    // before the next strip's barrier.
    constexpr bool kTwoBuffers = 2 * kN <= kMaxColumnTiles;
    float4* buffer = partials + (kTwoBuffers ? sums % 2 * kN : 0) * kWarps * 32;
    if (!kTwoBuffers) ConsumerBarrier();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      buffer[(n * kWarps + warp) * 32 + lane] =
          make_float4(acc[n][0], acc[n][1], acc[n][2], acc[n][3]);
    }
    ConsumerBarrier();
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      if (warp != (sums * kN + n) % kWarps) continue;
      float sum[4] = {};
#pragma unroll
      for (int k = 0; k < kWarps; ++k) {
        const float4 v = buffer[(n * kWarps + k) * 32 + lane];
        sum[0] += v.x;
        sum[1] += v.y;
        sum[2] += v.z;
        sum[3] += v.w;
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int row = n * 8 + lane % 4 * 2 + e;
        if (row >= run.count) continue;
        static_cast<float*>(p.out)[(run.begin + row) * p.out_stride + unit * 8 + BandRow(lane)] =
            SiluTimes(sum[e], sum[2 + e]);
      }
    }
    __syncwarp();
  }
  // The next run's first sums may go into the buffer that is being added up.
  ConsumerBarrier();
  progress.ring = ring;
  progress.sums = sums;
}

// Strips of down, one a warp. kKeep: there are two steps, and the rows stay in registers.
template <int kN, bool kKeep>
__device__ __forceinline__ void MultiplyAlone(const StreamParams& p,
                                              const WorkRun& run,
                                              Progress<false>& progress) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  Ring<false> ring = progress.ring;
  const Rows<kN> rows(p, run, ring.RunQueue(), progress.index, lane);
  const float* scales = ScalesOf(p, run);
  Input<kN> kept[kKeep ? 2 : 1];
  if constexpr (kKeep) {
    if (p.x_f32) {
#pragma unroll
      for (int i = 0; i < 2; ++i) Round<kN>(p, run, min(i, p.steps - 1), lane, kept[i]);
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i) kept[i].Load(p, rows, min(i, p.steps - 1));
    }
  }
  const auto first_row = [&](int unit) { return (unit * kWarps + warp) * 16; };
  int target[kN][2];
  float factor[kN][2];
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int row = n * 8 + lane % 4 * 2 + e;
      target[n][e] = -1;
      factor[n][e] = 0;
      if (row >= run.count) continue;
      const int entry = Entry(ring.RunQueue(), progress.index, row);
      target[n][e] = p.scatter ? entry : run.begin + row;
      factor[n][e] = __ldg(p.route_weights + entry);
    }
  }
  const int band_row = BandRow(lane);
  const bool odd = band_row % 2 != 0;
  float2 next_scales = BandScales(p, scales, first_row(run.first), first_row(run.first) + 8, 0);
  for (int unit = run.first; unit < run.last; ++unit) {
    float acc[kN][4] = {};
    const auto one = [&](int step, const Input<kN>& x) {
      const float2 own_scales = next_scales;
      const bool ends = step + 1 == p.steps;
      const int row = first_row(ends ? unit + 1 : unit);
      next_scales = BandScales(p, scales, row, row + 8, ends ? 0 : step + 1);
      BarrierWait(ring.Full(), ring.parity);
      const uint32_t low = ring.Data() + warp * 2048;
      MultiplyTile<kN>(acc, low, low + 1024, x, own_scales, lane);
      Release(ring, lane);
      ring.Next();
    };
    if constexpr (kKeep) {
      one(0, kept[0]);
      if (p.steps > 1) one(1, kept[1]);
    } else {
      for (int step = 0; step < p.steps; ++step) {
        kept[0].Load(p, rows, step);
        one(step, kept[0]);
      }
    }
    const int row = first_row(unit);
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int band = 0; band < 2; ++band) {
        // Two lanes with neighbouring rows take both of one token each.
        const float even_token = acc[n][2 * band] * factor[n][0];
        const float odd_token = acc[n][2 * band + 1] * factor[n][1];
        const float other = __shfl_xor_sync(~0u, odd ? even_token : odd_token, 8);
        const uint32_t pair =
            odd ? hopper::PackBf16(other, odd_token) : hopper::PackBf16(even_token, other);
        const int to = odd ? target[n][1] : target[n][0];
        const int column = row + band * 8 + band_row / 2 * 2;
        if (to < 0 || column >= p.n) continue;
        *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + to * p.out_stride +
                                     column) = pair;
      }
    }
    __syncwarp();
  }
  progress.ring = ring;
}

template <bool kGated, int kN>
__device__ __forceinline__ void MultiplyRun(const StreamParams& p,
                                            const WorkRun& run,
                                            float4* partials,
                                            Progress<kGated>& progress) {
  if constexpr (kGated) {
    MultiplyAcross<kN>(p, run, partials, progress);
  } else {
    if (kN <= 2 && p.steps <= 2) {
      MultiplyAlone<kN, kN <= 2>(p, run, progress);
    } else {
      MultiplyAlone<kN, false>(p, run, progress);
    }
  }
}

// The rarer tiles of more than 8 rows. Not inlined, so that they do not take registers from the
// others.
template <bool kGated, int kN>
__device__ __noinline__ Progress<kGated> MultiplyLargeRun(const StreamParams& p,
                                                          WorkRun run,
                                                          float4* partials,
                                                          Progress<kGated> progress) {
  MultiplyRun<kGated, kN>(p, run, partials, progress);
  return progress;
}

template <bool kGated>
__global__ void __launch_bounds__(kThreads, kStreamingBlocks)
    Fp8StreamKernel(const __grid_constant__ StreamParams p,
                    const __grid_constant__ CUtensorMap map) {
  extern __shared__ char memory[];
  Progress<kGated> progress;
  Ring<kGated>& ring = progress.ring;
  ring.memory = (SharedAddress(memory) + 1023) / 1024 * 1024;
  InitQueue(ring.RunQueue());
  if (threadIdx.x == 0) {
    for (int s = 0; s < kStages<kGated>; ++s) {
      BarrierInit(ring.Full(s), 1);
      BarrierInit(ring.Empty(s), kWarps);
    }
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&map);
  }
  __syncthreads();
  // Weights depend on the routing alone. The kernels before down, and before gate/up where that is
  // said, let it start only once that was done: its ring is filled while they end.
  const bool feeder = threadIdx.x >= kWarps * 32;
  const bool waits = !feeder || (kGated && !p.routed_before);
  if (waits) WaitForEarlierKernels();
  if (waits || !kGated) AllowNextKernel();
  if (feeder) {
    FeedRing<kGated>(p, &map, ring);
    return;
  }
  auto* sums = reinterpret_cast<float4*>(memory + (ring.memory - SharedAddress(memory)) +
                                         Ring<kGated>::kPartialsAt);
  for (;; ++progress.index) {
    const WorkRun run = ReadRun(ring.RunQueue(), progress.index);
    if (run.count == 0) return;
    if (run.count <= 8) {
      MultiplyRun<kGated, 1>(p, run, sums, progress);
    } else if (run.count <= 16) {
      progress = MultiplyLargeRun<kGated, 2>(p, run, sums, progress);
    } else {
      progress = MultiplyLargeRun<kGated, 4>(p, run, sums, progress);
    }
  }
}

template <bool kGated>
void Launch(const StreamParams& p, const CUtensorMap& map, int32_t blocks, cudaStream_t stream) {
  const auto kernel = Fp8StreamKernel<kGated>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kSharedBytes<kGated>),
            "shared memory of the streaming FP8 product");
  const Status launched =
      LaunchOverlapped("streaming FP8 product", kernel, dim3(static_cast<unsigned>(blocks)),
                       dim3(kThreads), kSharedBytes<kGated>, stream, 1, p, map);
  CheckLaunch("streaming FP8 product");
  BT_CHECK(launched.ok());
}

}  // namespace

void LaunchFp8Stream(const Fp8Product& product, int32_t blocks, cudaStream_t stream) {
  const PackedMatrix& w = product.w;
  BT_CHECK(w.form == WeightForm::kFp8Block && w.k % 128 == 0 &&
           w.n % (product.gated ? 16 : 2) == 0 && product.out_stride % 2 == 0);
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  StreamParams p = {};
  p.scales = static_cast<const char*>(w.data) + layout.scales;
  p.slot_bytes = w.stride_bytes;
  p.n = static_cast<int32_t>(w.n);
  p.half = p.n / 2;
  p.steps = static_cast<int32_t>(layout.steps);
  p.stages = product.gated ? (p.steps + kWarps - 1) / kWarps : p.steps;
  p.work = {.starts = product.starts,
            .tiles = product.tiles,
            .num_tiles = product.num_tiles,
            .order = product.order,
            .taken = product.taken,
            .units = product.gated ? p.half / 8 : (p.n + 16 * kWarps - 1) / (16 * kWarps),
            .piece = product.gated ? kFp8StreamDeal.gate_up_piece : kFp8StreamDeal.down_piece,
            .align = 1};
  p.x = static_cast<const char*>(product.x);
  p.x_row_bytes = product.x_row_bytes;
  p.x_scales = product.x_scales;
  p.out = product.out;
  p.out_stride = product.out_stride;
  p.top_k = product.top_k;
  p.gather = product.gather;
  p.scatter = product.scatter;
  p.route_weights = product.route_weights;
  p.x_f32 = product.x_f32;
  p.routed_before = product.routed_before;
  BT_CHECK(!p.x_f32 || (!product.gated && p.steps <= kFp8RoundedSteps));
  CUtensorMap map;
  const auto rows = static_cast<cuuint32_t>(product.gated ? 8 : 16 * kWarps);
  const auto columns = static_cast<cuuint32_t>(product.gated ? kWarps : 1);
  const Status mapped =
      MakeTensorMap(TensorMapOf<4>{.type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
                                   .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
                                   .sizes = {128, static_cast<cuuint64_t>(w.n),
                                             static_cast<cuuint64_t>(layout.steps),
                                             static_cast<cuuint64_t>(w.count)},
                                   .strides = {static_cast<cuuint64_t>(layout.row_bytes), 128,
                                               static_cast<cuuint64_t>(w.stride_bytes)},
                                   .box = {128, rows, columns, 1}},
                    w.data, map);
  BT_CHECK(mapped.ok());
  if (product.gated) {
    Launch<true>(p, map, blocks, stream);
  } else {
    Launch<false>(p, map, blocks, stream);
  }
}

}  // namespace baltoro::cuda
