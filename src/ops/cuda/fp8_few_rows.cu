#include "ops/cuda/fp8_few_rows.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/dev_switch.h"
#include "ops/cuda/fp8_round_device.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/kv_token_device.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/product.h"
#include "ops/cuda/product_forms.cuh"
#include "ops/cuda/product_layout.h"
#include "ops/cuda/route_product_device.cuh"

namespace baltoro::cuda {
namespace {

using product::E4m3ToF16;
using product::MultiplyAddF16;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStripRows = 8;
constexpr int kRowsMax = 16;
constexpr int kHalfRows = 8;     // of the matrix instruction
constexpr int kUnit = 256;       // columns that a warp rounds together
constexpr int kUnitsAtOnce = 8;  // of a warp, asked for together
constexpr int kUnitsMax = 16;
constexpr int kPad = 64;  // bytes between rows in shared memory: they use all banks
constexpr int kStepsMax = 64;
constexpr int kGroupsMax = kStepsMax / kWarps;  // of steps, one a warp
constexpr int kMultiprocessors = 132;
constexpr int kSharedMax = 150 * 1024;  // of a block: the next kernel has room beside it

// What the rows are when the kernel begins.
enum class Source : int32_t { kCodes, kBf16, kGated, kNorm };

struct Params {
  const char* w;
  const float* w_scales;  // [strips, steps]
  int32_t strips, steps, warps_k;
  const char* x;  // codes, or bf16
  int64_t x_row_bytes;
  const float* x_scales;  // [rows, steps], of codes
  Source source;
  int32_t rows;
  void* out;
  int64_t out_stride;
  bool bf16;
};

// What a product of queries needs beside it (Source::kNorm): rows are normalised first, the last
// columns of each head rotated; blocks behind those of the product write the tokens.
struct QueryParams {
  InputParams input;
  int32_t head_strips, nope_strips;
};

// A block's shared memory, in bytes.
struct Places {
  int row, barrier, scales, x_scales, sums, codes, end;

  __host__ __device__ Places(int strips, int steps, int rows, bool tall, bool rounds) {
    row = steps * 128 + kPad;
    scales = strips * kStripRows * row;
    x_scales = scales + strips * steps * 4;
    sums = (x_scales + (rounds ? rows * steps * 4 : 0) + 15) / 16 * 16;
    barrier = sums + kWarps * strips * (tall ? 2 : 1) * 32 * 8;
    codes = barrier + 8 * kGroupsMax;
    end = codes + (rounds ? rows * row : 0);
  }
};

// The rows as codes in shared memory: units of 256 columns, a warp each. A row's groups are in 16
// lanes.
__device__ __forceinline__ void RoundRows(const Params& p, char* memory, const Places& places) {
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
  if (p.source == Source::kGated) {
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
  for (int first = warp; first < units; first += kUnitsAtOnce * kWarps) {
    uint4 raw[kUnitsAtOnce];
#pragma unroll
    for (int i = 0; i < kUnitsAtOnce; ++i) raw[i] = load(first + i * kWarps, 0);
#pragma unroll
    for (int i = 0; i < kUnitsAtOnce; ++i) {
      if (first + i * kWarps >= units) break;
      float v[8];
      WidenEight(raw[i], v);
      finish(first + i * kWarps, v);
    }
  }
}

// Rows normalised, then rounded, a warp each.
constexpr int kNormUnits = 8;  // of a row at most

__device__ __forceinline__ void NormaliseRows(const Params& p,
                                              const InputParams& input,
                                              char* memory,
                                              const Places& places) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, columns = p.steps * 128;
  const uint32_t codes = SharedAddress(memory + places.codes);
  auto* const scales = reinterpret_cast<float*>(memory + places.x_scales);
  for (int row = warp; row < p.rows; row += kWarps) {
    float v[kNormUnits][8];
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kNormUnits; ++i) {
      const int column = i * kUnit + lane * 8;
      uint4 raw = make_uint4(0, 0, 0, 0);
      if (column < columns) {
        raw = __ldcg(reinterpret_cast<const uint4*>(p.x + row * p.x_row_bytes + column * 2));
      }
      WidenEight(raw, v[i]);
      squares = AddSquares(v[i], squares);
    }
#pragma unroll
    for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(~0u, squares, d);
    const float factor = 1.0f / sqrtf(squares / static_cast<float>(columns) + input.eps);
#pragma unroll
    for (int i = 0; i < kNormUnits; ++i) {
      if (i * kUnit >= columns) break;
      const int column = i * kUnit + lane * 8;
      float weight[8] = {};
      if (column < columns) {
        const auto* from = reinterpret_cast<const float4*>(input.q_norm + column);
        const float4 a = __ldg(from), b = __ldg(from + 1);
        weight[0] = a.x, weight[1] = a.y, weight[2] = a.z, weight[3] = a.w;
        weight[4] = b.x, weight[5] = b.y, weight[6] = b.z, weight[7] = b.w;
      }
      Normalise(v[i], factor, weight);
      RoundToBf16(v[i]);
      float scale;
      const uint2 rounded = RoundEight(v[i], scale);
      if (column >= columns) continue;
      StoreShared2(codes + row * places.row + column, rounded);
      if (lane % 16 == 0) scales[row * p.steps + column / 128] = scale;
    }
  }
}

// Cosine and sine of a pair; positions outside the table spoil it.
__device__ __forceinline__ float2 PairAngle(const InputParams& p, int token, int j) {
  const int64_t position = p.positions[token];
  if (position < 0 || position >= p.table_positions) {
    return make_float2(__int_as_float(0x7FC00000), __int_as_float(0x7FC00000));
  }
  const int64_t at = position * (p.cache.rope / 2) + j;
  return make_float2(p.cos[at], p.sin[at]);
}

__device__ __forceinline__ float2 RotatePair(float2 pair, float2 angle) {
  const float a = __bfloat162float(__float2bfloat16_rn(pair.x));
  const float b = __bfloat162float(__float2bfloat16_rn(pair.y));
  return make_float2(fmaf(a, angle.x, -b * angle.y), fmaf(b, angle.x, a * angle.y));
}

// kStrips strips of 8 rows of weights a block; its warps share the columns, and the strips where
// there are fewer steps than warps. kTall: of 9 to 16 rows, else of up to 8.
template <int kStrips, bool kTall, bool kQuery>
__global__ void __launch_bounds__(kThreads, 2)
    Fp8FewRowsKernel(const __grid_constant__ Params p,
                     const __grid_constant__ QueryParams query,
                     const __grid_constant__ RouterProductParams router) {
  extern __shared__ __align__(128) char memory[];
  // Blocks behind those of the product have something else to do.
  static_assert(kThreads == kRouterThreads);
  if (!kQuery && static_cast<int>(blockIdx.x) * kStrips >= p.strips) {
    MultiplyRouter(router, static_cast<int>(blockIdx.x) - p.strips / kStrips,
                   *reinterpret_cast<RouterSums*>(memory));
    return;
  }
  if (kQuery && static_cast<int>(blockIdx.x) * kStrips >= p.strips) {
    WriteToken(query.input, static_cast<int>(blockIdx.x) - p.strips / kStrips,
               reinterpret_cast<float*>(memory));
    return;
  }
  constexpr int kRows = kStrips * kStripRows, kHalves = kTall ? 2 : 1;
  constexpr int kAhead = kStrips == 7 ? 2 : 4;  // steps of a warp whose rows are asked for
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool rounds = p.source != Source::kCodes;
  const Places places(kStrips, p.steps, p.rows, kTall, rounds);
  const uint32_t shared = SharedAddress(memory), barrier = shared + places.barrier;
  const int strip = static_cast<int>(blockIdx.x) * kStrips;
  const int row_bytes = p.steps * 128;
  // Steps go to the warps in turn: a group is one for each, and has a
  // barrier.
  const int groups = (p.steps + p.warps_k - 1) / p.warps_k;
  const auto group_bytes = [&](int g) { return min(p.warps_k, p.steps - g * p.warps_k) * 128; };
  if (warp == 0) {
    if (lane < groups) {
      BarrierInit(barrier + 8 * lane, 1);
      asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
      BarrierExpectBytes(barrier + 8 * lane, kRows * group_bytes(lane));
    }
    __syncwarp();
    const uint64_t policy = ReadOncePolicy();
    const char* const from = p.w + static_cast<int64_t>(strip) * kStripRows * row_bytes;
    for (int g = 0; g < groups; ++g) {
      const int at = g * p.warps_k * 128;
      for (int row = lane; row < kRows; row += 32) {
        CopyBulk(shared + row * places.row + at, from + static_cast<int64_t>(row) * row_bytes + at,
                 group_bytes(g), barrier + 8 * g, policy);
      }
    }
  }
  auto* const scales = reinterpret_cast<float*>(memory + places.scales);
  for (int i = threadIdx.x; i < kStrips * p.steps; i += kThreads) {
    scales[i] = __ldg(p.w_scales + static_cast<int64_t>(strip) * p.steps + i);
  }
  // Of the warps that add up: an item is a strip and half of the rows.
  // Positions are older than the kernel ahead.
  static_assert(!kQuery || kStrips * kHalves <= kWarps);
  [[maybe_unused]] float2 angle;
  [[maybe_unused]] int in_head = -1;
  if constexpr (kQuery) {
    in_head = (strip + warp / kHalves) % query.head_strips - query.nope_strips;
    const int row = warp % kHalves * kHalfRows + lane / 4;
    if (warp < kStrips * kHalves && in_head >= 0 && row < p.rows) {
      angle = PairAngle(query.input, row, in_head * (kStripRows / 2) + lane % 4);
    }
  }
  WaitForEarlierKernels();
  AllowNextKernel();
  if constexpr (kQuery) {
    NormaliseRows(p, query.input, memory, places);
  } else if (rounds) {
    RoundRows(p, memory, places);
  }
  __syncthreads();

  const int token = lane / 4;
  const uint32_t x_shared = shared + places.codes + token * places.row + lane % 4 * 16;
  const char* const x_global = p.x + token * p.x_row_bytes + lane % 4 * 16;
  const auto* const x_scales = reinterpret_cast<const float*>(memory + places.x_scales);
  const int part = warp % p.warps_k, team = warp / p.warps_k, teams = kWarps / p.warps_k;
  float acc[kStrips][4] = {};
  uint4 x[kAhead][kHalves][2];
  float scale[kAhead][kHalves];
  const auto load = [&](int i, int step) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int row = token + h * kHalfRows;
      x[i][h][0] = x[i][h][1] = make_uint4(0, 0, 0, 0);
      scale[i][h] = 0;
      if (step >= p.steps || row >= p.rows) continue;
      if (rounds) {
        const uint32_t at = x_shared + h * kHalfRows * places.row + step * 128;
        x[i][h][0] = LoadShared4(at);
        x[i][h][1] = LoadShared4(at + 64);
        scale[i][h] = x_scales[row * p.steps + step];
      } else {
        const auto* at =
            reinterpret_cast<const uint4*>(x_global + h * kHalfRows * p.x_row_bytes + step * 128);
        x[i][h][0] = __ldcg(at);
        x[i][h][1] = __ldcg(at + 4);
        scale[i][h] = __ldcg(p.x_scales + row * p.steps + step);
      }
    }
  };
#pragma unroll
  for (int i = 0; i < kAhead; ++i) load(i, part + i * p.warps_k);
  for (int first = 0; first < groups; first += kAhead) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int step = part + (first + i) * p.warps_k;
      if (step >= p.steps) break;
      BarrierWait(barrier + 8 * (first + i), 0);
      uint2 low[2][4], high[2][4];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const uint4 &a = x[i][0][j], &b = x[i][kHalves - 1][j];
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
          acc[s][e] += (sums[0][e] + sums[1][e]) * (weights * scale[i][e / 2]);
        }
      }
      load(i, step + kAhead * p.warps_k);
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
      if (in_head >= 0) sum = RotatePair(sum, angle);
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

bool Aligned(const void* data, int64_t row_bytes, int64_t to) {
  return reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(to) == 0 && row_bytes % to == 0;
}

// Whether each block rounds the rows: about as long as a launch takes at most.
bool Rounds(int64_t rows, int64_t k) {
  return rows * ((k + kUnit - 1) / kUnit) <= kWarps * kUnitsMax;
}

// Strips of a block: the multiprocessor that has most has as few as can be; of equals the most,
// whose rows are rounded or read once, or for very few rows the fewest, which fit in beside the
// kernel ahead. 0: the matrix is not for this kernel.
int StripsOfBlock(int64_t rows, int64_t n, int64_t k) {
  static const int few = DevSwitch("BALTORO_FP8_FEWEST", 2);
  const int64_t strips = n / kStripRows;
  int best = 0;
  int64_t least = INT64_MAX;
  for (const int each : {1, 2, 7}) {
    const int64_t bytes = Places(each, static_cast<int>(k / 128), static_cast<int>(rows),
                                 rows > kHalfRows, Rounds(rows, k))
                              .end;
    if (strips % each != 0 || bytes > kSharedMax) continue;
    const int64_t blocks = strips / each;
    const int64_t most = (blocks + kMultiprocessors - 1) / kMultiprocessors;
    if (most * bytes > 220 * 1024) continue;  // what does not fit at once is not ahead of anything
    if (most * each > least || (most * each == least && rows <= few && k > 2048)) continue;
    least = most * each;
    best = each;
  }
  return best;
}

template <int kStrips, bool kQuery = false>
void Launch(const Params& p,
            cudaStream_t stream,
            const QueryParams& query = {},
            const RouterProductParams& router = {}) {
  const bool tall = p.rows > kHalfRows;
  const int bytes = Places(kStrips, p.steps, p.rows, tall, p.source != Source::kCodes).end;
  const auto kernel =
      tall ? Fp8FewRowsKernel<kStrips, true, kQuery> : Fp8FewRowsKernel<kStrips, false, kQuery>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "FP8 product of few rows");
  const int blocks = p.strips / kStrips + (kQuery ? p.rows : RouterBlocks(router));
  const Status launched =
      LaunchOverlapped("FP8 product of few rows", kernel, dim3(static_cast<unsigned>(blocks)),
                       dim3(kThreads), static_cast<size_t>(bytes), stream, 1, p, query, router);
  CheckLaunch("FP8 product of few rows");
  BT_CHECK(launched.ok());
}

bool Takes(const TensorView& out, const TensorView& x, int64_t x_columns, const PackedMatrix& w) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % kStripRows == 0 && w.k > 0 && w.k % 128 == 0 && w.k / 128 <= kStepsMax &&
         x.dtype == DType::kBf16 && x.dim(0) >= 1 && x.dim(0) <= kRowsMax &&
         x.dim(1) == x_columns && Aligned(w.data, 0, 16) &&
         Aligned(x.data, x.dim(0) == 1 ? 0 : x.stride[0] * 2, 16) &&
         (Rounds(x.dim(0), w.k) || DevSwitch("BALTORO_FP8_CODES", 0) != 0) &&
         Aligned(out.data, out.dim(0) <= 1 ? 0 : out.stride[0] * SizeOf(out.dtype),
                 2 * SizeOf(out.dtype)) &&
         StripsOfBlock(x.dim(0), w.n, w.k) > 0;
}

Params ParamsOf(const TensorView& out, const TensorView& x, const PackedMatrix& w, Source source) {
  const int64_t rows = x.dim(0);
  const ProductLayout layout = LayoutOf(w.form, w.n, w.k);
  Params p = {};
  p.w = static_cast<const char*>(w.data);
  p.w_scales = reinterpret_cast<const float*>(p.w + layout.scales);
  p.strips = static_cast<int32_t>(w.n / kStripRows);
  p.steps = static_cast<int32_t>(layout.steps);
  p.warps_k = kWarps;
  while (p.warps_k > p.steps) p.warps_k /= 2;
  p.x = static_cast<const char*>(x.data);
  p.x_row_bytes = rows == 1 ? 0 : x.stride[0] * 2;
  p.source = source;
  p.rows = static_cast<int32_t>(rows);
  p.out = out.data;
  p.out_stride = out.stride[0];
  p.bf16 = out.dtype == DType::kBf16;
  return p;
}

void Run(const OpContext& ctx,
         const TensorView& out,
         const TensorView& x,
         const PackedMatrix& w,
         Source source,
         const RouterProductParams& router = {}) {
  Params p = ParamsOf(out, x, w, source);
  const int64_t rows = x.dim(0);
  if (source == Source::kBf16 && !Rounds(rows, w.k)) {
    const QuantisedRows in =
        QuantiseRows(ctx, {.x = x.data, .stride = x.stride[0], .rows = rows, .k = w.k}, w);
    p.x = static_cast<const char*>(in.x);
    p.x_row_bytes = in.x_stride;
    p.x_scales = in.x_scales;
    p.source = Source::kCodes;
  }
  switch (StripsOfBlock(rows, w.n, w.k)) {
    case 1:
      return Launch<1>(p, StreamOf(ctx), {}, router);
    case 2:
      return Launch<2>(p, StreamOf(ctx), {}, router);
    default:
      return Launch<7>(p, StreamOf(ctx), {}, router);
  }
}

}  // namespace

bool Fp8FewRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return Takes(out, x, w.k, w);
}

void Fp8FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(Fp8FewRowsTakes(out, x, w) && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  Run(ctx, out, x, w, Source::kBf16);
}

bool Fp8FewRowsRouterTakes(const TensorView& out,
                           const PackedMatrix& w,
                           const TensorView& logits,
                           const PackedMatrix& router,
                           const TensorView& x) {
  return Fp8FewRowsTakes(out, x, w) && Rounds(x.dim(0), w.k) && RouterProductTakes(x, router) &&
         logits.dtype == DType::kF32;
}

void Fp8FewRowsRouter(const OpContext& ctx,
                      TensorView out,
                      const PackedMatrix& w,
                      TensorView logits,
                      const PackedMatrix& router,
                      TensorView x) {
  BT_CHECK(Fp8FewRowsRouterTakes(out, w, logits, router, x));
  BT_CHECK(out.dim(0) == x.dim(0) && out.dim(1) == w.n && logits.dim(0) == x.dim(0) &&
           logits.dim(1) == router.n && x.dim(1) == router.k);
  Run(ctx, out, x, w, Source::kBf16, RouterProductParamsOf(logits, x, router));
}

bool Fp8FewRowsGatedTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return Takes(out, x, 2 * w.k, w) && Rounds(x.dim(0), w.k);
}

void Fp8FewRowsGated(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(Fp8FewRowsGatedTakes(out, x, w) && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  Run(ctx, out, x, w, Source::kGated);
}

namespace {

constexpr int kQueryStrips = 2;

TensorView FlatQuery(const AttentionInputArgs& args) {
  TensorView flat(args.q.data, args.q.dtype, {args.q.dim(0), args.q.dim(1) * args.q.dim(2)});
  flat.stride[0] = args.q.stride[0];
  return flat;
}

}  // namespace

bool Fp8QueryTakes(const AttentionInputArgs& args) {
  const PackedMatrix& w = args.q_weight;
  const KvLayerView& cache = args.cache;
  if (!args.q || args.q.rank != 3 || args.q.dtype != DType::kBf16) return false;
  const int64_t rows = args.qkv_a.dim(0), width = args.q.dim(2), nope = width - args.rope.dim;
  return Takes(FlatQuery(args), args.qkv_a, args.qkv_a.dim(1), w) && args.q.stride[1] == width &&
         w.n == args.q.dim(1) * width && w.n / kStripRows % kQueryStrips == 0 && nope > 0 &&
         nope % kStripRows == 0 && width % kStripRows == 0 &&
         w.k == args.qkv_a.dim(1) - cache.latent - cache.rope && w.k <= kNormUnits * kUnit &&
         Aligned(args.q_norm.data, 0, 16) &&
         Places(kQueryStrips, static_cast<int>(w.k / 128), static_cast<int>(rows), rows > kHalfRows,
                true)
                 .end <= kSharedMax &&
         InputThreads(cache.latent) + InputThreads(cache.rope) <= kThreads;
}

void Fp8Query(const OpContext& ctx, const AttentionInputArgs& args) {
  BT_CHECK(Fp8QueryTakes(args));
  const Params p = ParamsOf(FlatQuery(args), args.qkv_a, args.q_weight, Source::kNorm);
  const int64_t width = args.q.dim(2);
  const QueryParams query = {
      .input = InputParamsOf(args),
      .head_strips = static_cast<int32_t>(width / kStripRows),
      .nope_strips = static_cast<int32_t>((width - args.rope.dim) / kStripRows)};
  Launch<kQueryStrips, true>(p, StreamOf(ctx), query);
}

}  // namespace baltoro::cuda
