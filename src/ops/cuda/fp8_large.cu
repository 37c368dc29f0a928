// The large form of the FP8 products (fp8_bank.h): hundreds of rows of each matrix, bound by the
// matrix units.
//
// A block takes 128 rows of x by 256 rows of weights at a time, a share of all such pieces. The
// rows of x are the first operand of wgmma, 64 a warpgroup, so that a thread has two rows and needs
// two of their scales; weights are its columns, 128 at a time. One thread asks the copy engine for
// both; pairs of blocks fetch the weights for each other. The sum of 128 columns is scaled and
// added up in f32 (the instruction itself adds with fewer bits) while the other warpgroup
// multiplies.
//
// Of gate and up a block takes 128 rows each: a row's group of the middle is in four lanes, and is
// rounded to e4m3 where it is.
//
// Floor: 2 n k T operations over the card's FP8 rate.

#include <cuda_fp8.h>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_large.h"
#include "ops/cuda/moe_group_multiply.cuh"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/product_wide_multiply.cuh"
#include "ops/cuda/tensor_map.h"

namespace baltoro::cuda {
namespace {

using namespace fp8_wide;

constexpr int kSums = 64;                // of a thread, of 128 columns
constexpr int kChunkColumns = 64;        // of results on their way out
constexpr int kStagingPitch = 128 + 16;  // bytes; a row of 64 bf16, or of 128 codes
constexpr int kWarpStaging = 16 * kStagingPitch;
// Weights of a stage: boxes of 128 rows.
template <int kBoxes>
constexpr int kLargeStageBytes = (kBoxes + 1) * kBoxBytes;
template <int kBoxes>
constexpr int kLargeStages = kBoxes == 1 ? 6 : 4;
template <int kBoxes>
constexpr int kLargeShared =
    1024 + kLargeStages<kBoxes>*(kLargeStageBytes<kBoxes> + 16) + kConsumerWarps* kWarpStaging;

template <int kBoxes>
struct LargeRing {
  uint32_t operands, full, empty;
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void Next() {
    if (++stage == kLargeStages<kBoxes>) {
      stage = 0;
      parity ^= 1;
    }
  }
  __device__ __forceinline__ uint32_t Weights() const {
    return operands + stage * kLargeStageBytes<kBoxes>;
  }
  __device__ __forceinline__ uint32_t Input() const { return Weights() + kBoxes * kBoxBytes; }
  __device__ __forceinline__ uint32_t Full() const { return full + 8 * stage; }
  __device__ __forceinline__ uint32_t Empty() const { return empty + 8 * stage; }
};

// First rows of the boxes of weights; of one, of its halves.
template <bool kGated, int kBoxes>
__device__ __forceinline__ int2 BoxRows(const WideParams& p, int strip) {
  if (kBoxes == 1) return make_int2(strip * 128, strip * 128 + 64);
  const int low = strip * (kGated ? 128 : kWeightRows);
  return make_int2(low, low + (kGated ? p.half : 128));
}

template <bool kGated, int kBoxes>
__device__ __forceinline__ void Feed(const WideParams& p,
                                     const CUtensorMap* weights,
                                     const CUtensorMap* x,
                                     Pieces pieces,
                                     LargeRing<kBoxes> ring) {
  constexpr int kHalf = kBoxes * kBoxBytes / 2;
  for (; !pieces.Done(); pieces.Next()) {
    const PairedTile paired = TileOf(p, pieces);
    const int2 rows = BoxRows<kGated, kBoxes>(p, pieces.Strip());
    const int slot = paired.tile.slot;
    for (int step = 0; step < p.steps; ++step) {
      BarrierWait(ring.Empty(), ring.parity ^ 1);
      BarrierExpectBytes(ring.Full(), kLargeStageBytes<kBoxes>);
      if (paired.shared) {
        CopyBoxToBoth(ring.Weights() + pieces.rank * kHalf, weights, ring.Full(), step * 128,
                      pieces.rank == 0 ? rows.x : rows.y, slot);
      } else {
        hopper::CopyBox(ring.Weights(), weights, ring.Full(), step * 128, rows.x, slot);
        hopper::CopyBox(ring.Weights() + kHalf, weights, ring.Full(), step * 128, rows.y, slot);
      }
      // Rows of the next tile and zeros behind the last one: their results are not stored.
      hopper::CopyBox(ring.Input(), x, ring.Full(), step * 128, paired.tile.begin, 0);
      ring.Next();
    }
  }
}

// A thread's scales of a step: of its two rows of x, and of one of the 32 bands of weights.
struct Scales {
  float x[2], band;
};

struct ScaleSource {
  const float *first, *second, *bands;
  __device__ __forceinline__ Scales At(int step) const {
    return {{__ldcg(first + step), __ldcg(second + step)}, __ldg(bands + step)};
  }
};

__device__ __forceinline__ void Multiply(float (&sums)[kSums], uint64_t a, uint64_t b) {
  hopper::Pin(sums);
  GroupFence();
#pragma unroll
  for (int i = 0; i < 4; ++i) GroupMultiplyShared<128>::E4m3(sums, a + 2 * i, b + 2 * i, i);
  GroupCommit();
}

// scaled += sums * the scales of their rows and bands.
__device__ __forceinline__ void AddScaled(
    float (&scaled)[kSums], float (&sums)[kSums], const Scales& scales, bool uniform, int block) {
  float weight = __shfl_sync(~0u, scales.band, block * 16);
  if (!uniform) {  // hardly ever
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      sums[i] *= __shfl_sync(~0u, scales.band, block * 16 + i / 4);
    }
    weight = 1;
  }
  const float first = scales.x[0] * weight, second = scales.x[1] * weight;
#pragma unroll
  for (int i = 0; i < kSums; i += 4) {
    scaled[i] = fmaf(sums[i], first, scaled[i]);
    scaled[i + 1] = fmaf(sums[i + 1], first, scaled[i + 1]);
    scaled[i + 2] = fmaf(sums[i + 2], second, scaled[i + 2]);
    scaled[i + 3] = fmaf(sums[i + 3], second, scaled[i + 3]);
  }
}

// silu(gate) * up, rounded to e4m3: 16 rows a warp, by way of its own shared memory.
__device__ __forceinline__ void StoreMiddle(const WideParams& p,
                                            const MoeTile& tile,
                                            int strip,
                                            uint32_t staging,
                                            float (&gate)[kSums],
                                            const float (&up)[kSums]) {
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 32 * 16;
  const int groups = p.half / 128;
#pragma unroll
  for (int i = 0; i < kSums; ++i) {
    gate[i] = __fdividef(gate[i], 1.0f + __expf(-gate[i])) * up[i];
  }
  float undo[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = 1e-4f;
#pragma unroll
    for (int i = 2 * half; i < kSums; i += 4) {
      largest = fmaxf(largest, fmaxf(fabsf(gate[i]), fabsf(gate[i + 1])));
    }
    for (int d = 1; d < 4; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
    const float scale = __fdiv_rn(largest, 448.0f);
    undo[half] = __fdiv_rn(1.0f, scale);
    const int row = first + lane / 4 + 8 * half;
    if (lane % 4 == 0 && row < tile.count) {
      p.out_scales[static_cast<int64_t>(tile.begin + row) * groups + strip] = scale;
    }
  }
  // Of each two groups of 8 columns a lane of two neighbouring ones makes a word: bytes c, c + 2,
  // c + 1, c + 3 of its columns (product_layout.h).
  const bool odd = lane % 2 != 0;
  __syncwarp();
#pragma unroll
  for (int j = 0; j < kSums / 4; j += 2) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t codes[2];
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int i = 4 * (j + e) + 2 * half;
        codes[e] = __nv_cvt_float2_to_fp8x2(
            make_float2(gate[i] * undo[half], gate[i + 1] * undo[half]), __NV_SATFINITE, __NV_E4M3);
      }
      const uint32_t other = __shfl_xor_sync(~0u, odd ? codes[0] : codes[1], 1);
      const uint32_t word =
          odd ? __byte_perm(other, codes[1], 0x5140) : __byte_perm(codes[0], other, 0x5140);
      const uint32_t at =
          staging + (lane / 4 + 8 * half) * kStagingPitch + (j + odd) * 8 + lane % 4 / 2 * 4;
      asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(word) : "memory");
    }
  }
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int in_warp = i * 4 + lane / 8, row = first + in_warp;
    const uint4 v = LoadShared4(staging + in_warp * kStagingPitch + lane % 8 * 16);
    if (row >= tile.count) continue;
    *reinterpret_cast<uint4*>(static_cast<char*>(p.out) + (tile.begin + row) * p.out_stride +
                              strip * 128 + lane % 8 * 16) = v;
  }
}

// Results times their rows' factors in bf16, 64 columns at a time likewise.
template <int kBoxes>
__device__ __forceinline__ void StoreShares(const WideParams& p,
                                            const MoeTile& tile,
                                            int first_column,
                                            uint32_t staging,
                                            const float (&acc)[kBoxes][kSums]) {
  const int lane = threadIdx.x % 32, first = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto entry_of = [&](int row) {
    const int at = tile.begin + row;
    return p.order == nullptr ? at : __ldcg(p.order + at);
  };
  float factors[2] = {1, 1};
  if (p.route_weights != nullptr) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = min(first + lane / 4 + 8 * half, tile.count - 1);
      factors[half] = __ldcg(p.route_weights + entry_of(max(row, 0)));
    }
  }
  // The rows that this lane stores.
  int64_t to[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = first + i * 4 + lane / 8;
    to[i] = -1;
    if (row < tile.count) to[i] = (p.scatter ? entry_of(row) : tile.begin + row) * p.out_stride;
  }
  const uint32_t from = staging + (lane % 16) * kStagingPitch + lane / 16 * 16;
#pragma unroll
  for (int chunk = 0; chunk < kBoxes * 128 / kChunkColumns; ++chunk) {
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 16 columns
      const float* const v = &acc[chunk / 2][chunk % 2 * 32 + i * 8];
      const uint32_t pairs[4] = {hopper::PackBf16(v[0] * factors[0], v[1] * factors[0]),
                                 hopper::PackBf16(v[2] * factors[1], v[3] * factors[1]),
                                 hopper::PackBf16(v[4] * factors[0], v[5] * factors[0]),
                                 hopper::PackBf16(v[6] * factors[1], v[7] * factors[1])};
      hopper::StoreMatrices(from + i * 32, pairs);
    }
    __syncwarp();
    const int column = first_column + chunk * kChunkColumns + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint4 v = LoadShared4(staging + (i * 4 + lane / 8) * kStagingPitch + lane % 8 * 16);
      if (to[i] < 0 || column >= p.n) continue;
      *reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(p.out) + to[i] + column) = v;
    }
  }
}

__device__ __forceinline__ bool Uniform(const Scales& scales, int lane) {
  return __all_sync(~0u, scales.band == __shfl_sync(~0u, scales.band, lane & 16));
}

template <bool kGated, int kBoxes>
__device__ __forceinline__ void Consume(const WideParams& p,
                                        Pieces pieces,
                                        LargeRing<kBoxes> ring,
                                        uint32_t staging) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const int first = static_cast<int>(threadIdx.x) / 32 * 16;
  const auto release = [&](const LargeRing<kBoxes>& stage) {
    if (lane != 0) return;
    BarrierArrive(stage.Empty());
    if (p.pair) ArriveAtOther(stage.Empty(), 1 - pieces.rank);
  };
  [[maybe_unused]] LargeRing<kBoxes> behind = ring;
  for (; !pieces.Done(); pieces.Next()) {
    const PairedTile paired = TileOf(p, pieces);
    MoeTile tile = paired.tile;
    const int strip = pieces.Strip();
    const auto x_scales = [&](int row) {
      return p.x_scales + static_cast<int64_t>(tile.begin + min(row, tile.count - 1)) * p.steps;
    };
    const int2 boxes = BoxRows<kGated, kBoxes>(p, strip);
    const int band_row = (kBoxes == 1 || lane < 16 ? boxes.x : boxes.y) + lane % 16 * 8;
    const ScaleSource source = {
        x_scales(first + lane / 4), x_scales(first + lane / 4 + 8),
        reinterpret_cast<const float*>(p.scales + tile.slot * p.slot_bytes) +
            static_cast<int64_t>(min(band_row / 8, (p.n - 1) / 8)) * p.steps};
    const int last = p.steps - 1;
    float scaled[kBoxes][kSums];
#pragma unroll
    for (int b = 0; b < kBoxes; ++b) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) scaled[b][i] = 0;
    }
    Scales even = source.At(0), odd = source.At(min(1, last));
    const auto wait_and_multiply = [&](float(&sums)[kSums]) {
      BarrierWait(ring.Full(), ring.parity);
      Multiply(sums, SwizzledOperand(ring.Input() + group * (kBoxBytes / 2)),
               SwizzledOperand(ring.Weights()));
    };
    if constexpr (kBoxes == 1) {
      // Two steps at a time: the second is multiplied while the first one's sums are scaled.
      float sums[2][kSums];
      const auto begin = [&](float(&next)[kSums]) {
        wait_and_multiply(next);
        ring.Next();
      };
      const auto finish = [&](float(&here)[kSums], const Scales& scales) {
        hopper::Pin(here);
        release(behind);
        behind.Next();
        AddScaled(scaled[0], here, scales, Uniform(scales, lane), 0);
      };
      int step = 0;
      for (; step < last; step += 2) {
        begin(sums[0]);
        begin(sums[1]);
        GroupWait<1>();
        finish(sums[0], even);
        even = source.At(min(step + 2, last));
        GroupWait<0>();
        finish(sums[1], odd);
        odd = source.At(min(step + 3, last));
      }
      if (step == last) {
        begin(sums[0]);
        GroupWait<0>();
        finish(sums[0], even);
      }
    } else {
      for (int step = 0; step <= last; ++step) {
        const Scales scales = even;
        even = odd;
        odd = source.At(min(step + 2, last));
        float sums[kSums];
        wait_and_multiply(sums);
        const bool uniform = Uniform(scales, lane);
        GroupWait<0>();
        hopper::Pin(sums);
        AddScaled(scaled[0], sums, scales, uniform, 0);
        Multiply(sums, SwizzledOperand(ring.Input() + group * (kBoxBytes / 2)),
                 SwizzledOperand(ring.Weights() + kBoxBytes));
        GroupWait<0>();
        hopper::Pin(sums);
        release(ring);
        AddScaled(scaled[1], sums, scales, uniform, 1);
        ring.Next();
      }
    }
    if (paired.again) tile.count = 0;  // nothing is stored
    if constexpr (kGated) {
      StoreMiddle(p, tile, strip, staging, scaled[0], scaled[1]);
    } else {
      StoreShares<kBoxes>(p, tile, boxes.x, staging, scaled);
    }
  }
}

template <bool kGated, int kBoxes>
__global__ void __launch_bounds__(kThreads, 1)
    Fp8LargeKernel(const __grid_constant__ WideParams p,
                   const __grid_constant__ CUtensorMap weights,
                   const __grid_constant__ CUtensorMap x) {
  extern __shared__ char memory[];
  LargeRing<kBoxes> ring;
  ring.operands = (SharedAddress(memory) + 1023) / 1024 * 1024;
  const uint32_t staging = ring.operands + kLargeStages<kBoxes> * kLargeStageBytes<kBoxes>;
  ring.full = staging + kConsumerWarps * kWarpStaging;
  ring.empty = ring.full + 8 * kLargeStages<kBoxes>;
  if (threadIdx.x == 0) {
    for (int s = 0; s < kLargeStages<kBoxes>; ++s) {
      BarrierInit(ring.full + 8 * s, 1);
      BarrierInit(ring.empty + 8 * s, p.pair ? 2 * kConsumerWarps : kConsumerWarps);
    }
    hopper::FenceBarrierInit();
    hopper::PrefetchMap(&weights);
    hopper::PrefetchMap(&x);
  }
  __syncthreads();
  if (p.pair) ClusterBarrier();
  WaitForEarlierKernels();
  AllowNextKernel();
  const Pieces pieces(p);
  if (threadIdx.x >= kConsumers) {
    hopper::LowerRegisters<40>();
    if (threadIdx.x == kConsumers) Feed<kGated, kBoxes>(p, &weights, &x, pieces, ring);
  } else {
    hopper::RaiseRegisters<232>();
    Consume<kGated, kBoxes>(p, pieces, ring,
                            staging + static_cast<int>(threadIdx.x) / 32 * kWarpStaging);
  }
  __syncwarp();
  if (p.pair) ClusterBarrier();  // until the other block sends no more
}

// Rows from which it is the faster form: of one matrix, and of each of many on average.
constexpr int64_t kLargeRows = 1024;
constexpr int64_t kLargeGatedRows = 192;
constexpr int64_t kLargeTileRows = 64;
constexpr int64_t kMultiprocessors = 132;  // of the cards this is tuned for

template <bool kGated, int kBoxes>
void Launch(const WideParams& p,
            const CUtensorMap& weights,
            const CUtensorMap& x,
            int64_t units,
            cudaStream_t stream) {
  const auto kernel = Fp8LargeKernel<kGated, kBoxes>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 kLargeShared<kBoxes>),
            "shared memory of the large FP8 product");
  const dim3 grid(static_cast<unsigned>(std::min((units + 1) / 2 * 2, kMultiprocessors)));
  const Status launched =
      LaunchOverlapped("large FP8 product", kernel, grid, dim3(kThreads), kLargeShared<kBoxes>,
                       stream, p.pair ? 2 : 1, p, weights, x);
  CheckLaunch("large FP8 product");
  BT_CHECK(launched.ok());
}

CUtensorMap MapOf(const void* data,
                  int64_t row_bytes,
                  int64_t rows,
                  int64_t count,
                  int64_t stride,
                  cuuint32_t box_rows) {
  CUtensorMap map;
  const Status mapped = MakeTensorMap(
      TensorMapShape{
          .type = CU_TENSOR_MAP_DATA_TYPE_UINT8,
          .swizzle = CU_TENSOR_MAP_SWIZZLE_128B,
          .sizes = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows),
                    static_cast<cuuint64_t>(count)},
          .strides = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(stride)},
          .box = {128, box_rows, 1}},
      data, map);
  BT_CHECK(mapped.ok());
  return map;
}

// Boxes of a piece of one matrix: those whose pieces keep the multiprocessors busy for the
// shortest time.
int BoxesOf(int64_t tiles, int64_t n, int64_t steps) {
  const auto cost = [&](int64_t rows, int64_t step_cost, int64_t end_cost) {
    const int64_t pieces = (tiles + 1) / 2 * ((n + rows - 1) / rows);
    const int64_t rounds = (pieces + kMultiprocessors / 2 - 1) / (kMultiprocessors / 2);
    return rounds * (steps * step_cost + end_cost);
  };
  return cost(128, 53, 120) < cost(256, 100, 200) ? 1 : 2;
}

}  // namespace

bool Fp8LargeTakes(const Fp8Product& product) {
  const PackedMatrix& w = product.w;
  const int64_t each = product.gated ? kLargeGatedRows : kLargeTileRows;
  const int64_t rows = product.tiles == nullptr ? kLargeRows : each * w.count;
  return product.rows >= rows && !product.gather && !product.out_f32 && w.k % 128 == 0 &&
         product.x_row_bytes == w.k && w.n % 8 == 0 &&
         reinterpret_cast<uintptr_t>(product.x) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(product.out) % 16 == 0 &&
         product.out_stride % (product.gated ? 16 : 8) == 0 && (!product.gated || w.n % 256 == 0);
}

void LaunchFp8Large(const Fp8Product& product, fp8_wide::WideParams p, cudaStream_t stream) {
  p.pair = true;
  p.tile_rows = kTileRows;
  p.parts = 1;
  const int64_t tiles =
      product.tiles == nullptr ? (product.rows + kTileRows - 1) / kTileRows : product.tiles_max;
  const int boxes = product.tiles != nullptr ? 2 : BoxesOf(tiles, p.n, p.steps);
  if (boxes == 1) p.strips = (p.n + 127) / 128;
  const int64_t units = (tiles + 1) / 2 * 2 * p.strips;
  const PackedMatrix& w = product.w;
  const CUtensorMap weights = MapOf(w.data, LayoutOf(w.form, w.n, w.k).row_bytes, w.n, w.count,
                                    w.stride_bytes, boxes == 1 ? 64 : 128);
  const CUtensorMap x =
      MapOf(p.x, p.steps * 128, product.rows, 1, product.rows * p.steps * 128, 128);
  if (product.gated) {
    Launch<true, 2>(p, weights, x, units, stream);
  } else if (boxes == 2) {
    Launch<false, 2>(p, weights, x, units, stream);
  } else {
    Launch<false, 1>(p, weights, x, units, stream);
  }
}

}  // namespace baltoro::cuda
