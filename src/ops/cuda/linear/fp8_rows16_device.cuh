#pragma once

// The block of the FP8 products of few rows (fp8_rows16.h), for the kernels that have it.

#include "ops/cuda/choose/fp8_rows16.h"
#include "ops/cuda/linear/e4m3_f16_device.cuh"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/ptx/hopper.cuh"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/kv_token_device.cuh"

namespace baltoro::cuda::fp8_rows16 {

using product::E4m3ToF16;
using product::MultiplyAddF16;

struct Params {
  const char* w;
  const float* w_scales;  // [strips, steps]
  int32_t strips, steps, warps_k;
  const char* x;  // bf16
  int64_t x_row_bytes;
  bool gated;         // x is gate, then up
  const char* codes;  // x as codes, rows without gaps, and their scales; or null
  const float* x_scales;
  int32_t rows;
  void* out;
  int64_t out_stride;
  bool bf16;
};

// Of queries: x is the low-rank query before its norm, and the rope part of each head is rotated.
struct Query {
  InputParams input;
  int head_strips, nope_strips;
};

// The block's shared memory beside that of Places, for queries: the weight of their norm, then a
// sum of squares for each unit.
struct QueryShared {
  float* weight;
  float* squares;
};

// The rows as codes in shared memory: units of 256 columns, a warp each. A row's groups are in 16
// lanes.
template <bool kQuery>
__device__ __forceinline__ void RoundRows(const Params& p,
                                          char* memory,
                                          const Places& places,
                                          const Query* query,
                                          const QueryShared& own) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int columns = p.steps * 128, in_row = (columns + kUnit - 1) / kUnit;
  const int units = p.rows * in_row;
  const uint32_t codes = SharedAddress(memory + places.codes);
  auto* const scales = reinterpret_cast<float*>(memory + places.x_scales);
  const auto finish = [&](int unit, const float(&v)[8]) {
    const int row = unit / in_row, column = (unit - row * in_row) * kUnit + lane * 8;
    float scale;
    const uint2 rounded = RoundEight(v, scale);
    if (column >= columns) return;
    StoreShared2(codes + row * places.row + column, rounded);
    if (lane % 16 == 0) scales[row * p.steps + column / 128] = scale;
  };
  const auto load = [&](int unit, int further) {
    const int row = unit / in_row, column = (unit - row * in_row) * kUnit + lane * 8;
    if (unit >= units || column >= columns) return make_uint4(0, 0, 0, 0);
    return __ldcg(reinterpret_cast<const uint4*>(p.x + row * p.x_row_bytes + column * 2 + further));
  };
  if (p.gated) {
    for (int unit = warp; unit < units; unit += kWarps) {
      const uint4 first = load(unit, 0), second = load(unit, columns * 2);
      float gate[8], up[8];
      WidenEight(first, gate);
      WidenEight(second, up);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        gate[i] = __bfloat162float(__float2bfloat16_rn(gate[i] / (1.0f + expf(-gate[i])) * up[i]));
      }
      finish(unit, gate);
    }
    return;
  }
  uint4 raw[kUnitsMax];  // all under way together
#pragma unroll
  for (int i = 0; i < kUnitsMax; ++i) raw[i] = load(warp + i * kWarps, 0);
  if constexpr (kQuery) {
#pragma unroll
    for (int i = 0; i < kUnitsMax; ++i) {
      if (warp + i * kWarps >= units) break;
      float v[8], squares = 0;
      WidenEight(raw[i], v);
#pragma unroll
      for (const float value : v) squares = fmaf(value, value, squares);
#pragma unroll
      for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
      if (lane == 0) own.squares[warp + i * kWarps] = squares;
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kUnitsMax; ++i) {
    const int unit = warp + i * kWarps;
    if (unit >= units) break;
    float v[8];
    WidenEight(raw[i], v);
    if constexpr (kQuery) {
      const int row = unit / in_row, column = (unit - row * in_row) * kUnit + lane * 8;
      float sum = 0;
      for (int u = 0; u < in_row; ++u) sum += own.squares[row * in_row + u];
      const float root = 1.0f / sqrtf(sum / static_cast<float>(columns) + query->input.eps);
      float weight[8] = {};
      if (column < columns) LoadWhole(own.weight + column, weight);
      Normalise(v, root, weight);
      RoundToBf16(v);
    }
    finish(unit, v);
  }
}

// The rows' codes into shared memory, told to the barrier of the weights, and their scales.
__device__ __forceinline__ void LoadCodes(const Params& p, char* memory, const Places& places) {
  const int row_bytes = p.steps * 128, row = threadIdx.x;
  if (row < p.rows) {
    CopyPlain(SharedAddress(memory + places.codes) + row * places.row,
              p.codes + static_cast<int64_t>(row) * row_bytes, row_bytes,
              SharedAddress(memory + places.barrier));
  }
  auto* const scales = reinterpret_cast<float*>(memory + places.x_scales);
  for (int i = threadIdx.x; i < p.rows * p.steps; i += kThreads) {
    scales[i] = __ldcg(p.x_scales + i);
  }
}

// kStrips strips of 8 rows of weights a block; its warps share the columns, and the strips where
// there are fewer steps than warps. kTall: of 9 to 16 rows, else of up to 8.
template <int kStrips, bool kTall, bool kQuery = false, bool kCoded = false>
__device__ __forceinline__ void MultiplyStrips(const Params& p,
                                               char* memory,
                                               int block,
                                               const Query* query = nullptr) {
  constexpr int kRows = kStrips * kStripRows, kHalves = kTall ? 2 : 1;
  static_assert(!kQuery || (!kTall && kStrips <= kWarps));
  static_assert(!kCoded || (!kTall && !kQuery));
  // Steps of a warp whose rows are asked for together: as many as registers are there for.
  constexpr int kChunk = kStrips == 7 || kQuery || kCoded ? 2 : kTall || kStrips == 2 ? 4 : 8;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Places places(kStrips, p.steps, p.rows, kTall);
  const uint32_t shared = SharedAddress(memory), barrier = shared + places.barrier;
  const int strip = block * kStrips;
  const int row_bytes = p.steps * 128;
  if (threadIdx.x == 0) {
    BarrierInit(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(barrier, (kRows + (kCoded ? p.rows : 0)) * row_bytes);
  }
  __syncthreads();
  if (threadIdx.x < kRows) {
    const int64_t row = static_cast<int64_t>(strip) * kStripRows + threadIdx.x;
    CopyBulk(shared + threadIdx.x * places.row, p.w + row * row_bytes, row_bytes, barrier,
             ReadOncePolicy());
  }
  auto* const scales = reinterpret_cast<float*>(memory + places.scales);
  for (int i = threadIdx.x; i < kStrips * p.steps; i += kThreads) {
    scales[i] = __ldg(p.w_scales + static_cast<int64_t>(strip) * p.steps + i);
  }
  // Of the warp that ends with the sums of a strip.
  [[maybe_unused]] QueryShared own = {};
  [[maybe_unused]] float2 angle = make_float2(1, 0);
  [[maybe_unused]] int in_head = -1;
  if constexpr (kQuery) {
    const int row_columns = p.steps * 128;
    own.weight = reinterpret_cast<float*>(memory + places.end);
    own.squares = own.weight + row_columns;
    for (int i = threadIdx.x; i < row_columns / 4; i += kThreads) {
      reinterpret_cast<float4*>(own.weight)[i] =
          __ldg(reinterpret_cast<const float4*>(query->input.q_norm) + i);
    }
    if (warp < kStrips) in_head = (strip + warp) % query->head_strips - query->nope_strips;
    if (in_head >= 0 && lane / 4 < p.rows) {
      angle = AngleOf(query->input, lane / 4, in_head * (kStripRows / 2) + lane % 4);
    }
  }
  WaitForEarlierKernels();
  AllowNextKernel();
  if constexpr (kCoded) {
    LoadCodes(p, memory, places);
  } else {
    RoundRows<kQuery>(p, memory, places, query, own);
  }
  __syncthreads();

  const int token = lane / 4;
  const uint32_t x_shared = shared + places.codes + token * places.row + lane % 4 * 16;
  const auto* const x_scales = reinterpret_cast<const float*>(memory + places.x_scales);
  const int part = warp % p.warps_k, team = warp / p.warps_k, teams = kWarps / p.warps_k;
  const int begin = p.steps * part / p.warps_k, end = p.steps * (part + 1) / p.warps_k;
  float acc[kStrips][4] = {};
  bool arrived = kCoded;
  if constexpr (kCoded) BarrierWait(barrier, 0);
  for (int first = begin; first < end; first += kChunk) {
    uint4 x[kHalves][kChunk][2];
    float scale[kHalves][kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int step = first + i, row = token + h * kHalfRows;
        x[h][i][0] = x[h][i][1] = make_uint4(0, 0, 0, 0);
        scale[h][i] = 0;
        if (step >= end || row >= p.rows) continue;
        const uint32_t at = x_shared + h * kHalfRows * places.row + step * 128;
        x[h][i][0] = LoadShared4(at);
        x[h][i][1] = LoadShared4(at + 64);
        scale[h][i] = x_scales[row * p.steps + step];
      }
    }
    if (!arrived) BarrierWait(barrier, 0);
    arrived = true;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const int step = first + i;
      if (step >= end) break;
      uint2 low[2][4], high[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 &a = x[0][i][j], &b = x[kHalves - 1][i][j];
        const uint32_t words[2][4] = {{a.x, a.y, a.z, a.w}, {b.x, b.y, b.z, b.w}};
#pragma unroll
        for (int w = 0; w < 4; ++w) {
          low[j][w] = E4m3ToF16(words[0][w]);
          high[j][w] = kTall ? E4m3ToF16(words[1][w]) : make_uint2(0, 0);
        }
      }
#pragma unroll
      for (int s = 0; s < kStrips; ++s) {
        if (s % teams != team) continue;
        float sums[2][4] = {};  // side by side: products wait for their sums
        const uint32_t at =
            shared + (s * kStripRows + token) * places.row + step * 128 + lane % 4 * 16;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const uint4 v = LoadShared4(at + j * 64);
          const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
          for (int w = 0; w < 4; ++w) {
            const uint2 weights = E4m3ToF16(words[w]);
            MultiplyAddF16(sums[j], low[j][w].x, high[j][w].x, low[j][w].y, high[j][w].y, weights.x,
                           weights.y);
          }
        }
        const float weights = scales[s * p.steps + step];
#pragma unroll
        for (int e = 0; e < 2 * kHalves; ++e) {
          acc[s][e] += (sums[0][e] + sums[1][e]) * (weights * scale[e / 2][i]);
        }
      }
    }
  }

  // The warps' sums of each strip.
  auto* const parts = reinterpret_cast<float2*>(memory + places.sums);
#pragma unroll
  for (int s = 0; s < kStrips; ++s) {
    if (s % teams != team) continue;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      parts[((s * kHalves + h) * kWarps + part) * 32 + lane] =
          make_float2(acc[s][2 * h], acc[s][2 * h + 1]);
    }
  }
  __syncthreads();
  for (int item = warp; item < kStrips * kHalves; item += kWarps) {
    const int s = item / kHalves, row = item % kHalves * kHalfRows + token;
    if (row >= p.rows) continue;
    float2 sum = make_float2(0, 0);
    for (int i = 0; i < p.warps_k; ++i) {
      const float2 one = parts[(item * kWarps + i) * 32 + lane];
      sum.x += one.x;
      sum.y += one.y;
    }
    if constexpr (kQuery) {
      if (in_head >= 0) sum = Rotate(sum, angle);
    }
    const int64_t at = row * p.out_stride + (strip + s) * kStripRows + lane % 4 * 2;
    if (p.bf16) {
      *reinterpret_cast<uint32_t*>(static_cast<__nv_bfloat16*>(p.out) + at) =
          hopper::PackBf16(sum.x, sum.y);
    } else {
      *reinterpret_cast<float2*>(static_cast<float*>(p.out) + at) = sum;
    }
  }
}

// `codes`: of x, where the plan reads them.
Params ParamsOf(const Fp8Rows16Plan& plan,
                const TensorView& out,
                const TensorView& x,
                const PackedMatrix& w,
                const QuantisedRows& codes = {});

}  // namespace baltoro::cuda::fp8_rows16
