#include "ops/cuda/fp8_few_rows.h"

#include <algorithm>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_round_device.cuh"
#include "ops/cuda/hopper.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/product_forms.cuh"
#include "ops/cuda/product_layout.h"

namespace baltoro::cuda {
namespace {

using product::E4m3ToF16;
using product::MultiplyAddF16;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kStripRows = 8;
constexpr int kRowsMax = 16;
constexpr int kHalfRows = 8;  // of the matrix instruction
constexpr int kUnit = 256;    // columns that a warp rounds together
constexpr int kUnitsMax = 8;  // of a warp
constexpr int kPad = 64;      // bytes between rows in shared memory: they use all banks
constexpr int kStepsMax = 64;
constexpr int kMultiprocessors = 132;
// Of the blocks on a multiprocessor: another kernel of this kind has room beside it. Beyond that
// the other kernel of few rows (product.h) is faster.
constexpr int kSharedMax = 113 * 1024;

struct Params {
  const char* w;
  const float* w_scales;  // [strips, steps]
  int32_t strips, steps, warps_k;
  const char* x;  // bf16
  int64_t x_row_bytes;
  bool gated;  // x is gate, then up
  int32_t rows;
  void* out;
  int64_t out_stride;
  bool bf16;
};

// A block's shared memory, in bytes.
struct Places {
  int row, barrier, scales, x_scales, sums, codes, end;

  __host__ __device__ Places(int strips, int steps, int rows, bool tall) {
    row = steps * 128 + kPad;
    scales = strips * kStripRows * row;
    x_scales = scales + strips * steps * 4;
    sums = (x_scales + rows * steps * 4 + 15) / 16 * 16;
    barrier = sums + kWarps * strips * (tall ? 2 : 1) * 32 * 8;
    codes = barrier + 16;
    end = codes + rows * row;
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
#pragma unroll
  for (int i = 0; i < kUnitsMax; ++i) {
    if (warp + i * kWarps >= units) break;
    float v[8];
    WidenEight(raw[i], v);
    finish(warp + i * kWarps, v);
  }
}

// kStrips strips of 8 rows of weights a block; its warps share the columns, and the strips where
// there are fewer steps than warps. kTall: of 9 to 16 rows, else of up to 8.
template <int kStrips, bool kTall>
__global__ void __launch_bounds__(kThreads, 2) Fp8FewRowsKernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) char memory[];
  constexpr int kRows = kStrips * kStripRows, kHalves = kTall ? 2 : 1;
  constexpr int kChunk = kStrips == 7 ? 2
                         : kTall      ? 4
                                      : 8;  // steps of a warp whose rows are asked for together
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const Places places(kStrips, p.steps, p.rows, kTall);
  const uint32_t shared = SharedAddress(memory), barrier = shared + places.barrier;
  const int strip = static_cast<int>(blockIdx.x) * kStrips;
  const int row_bytes = p.steps * 128;
  if (threadIdx.x == 0) {
    BarrierInit(barrier, 1);
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    BarrierExpectBytes(barrier, kRows * row_bytes);
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
  WaitForEarlierKernels();
  AllowNextKernel();
  RoundRows(p, memory, places);
  __syncthreads();

  const int token = lane / 4;
  const uint32_t x_shared = shared + places.codes + token * places.row + lane % 4 * 16;
  const auto* const x_scales = reinterpret_cast<const float*>(memory + places.x_scales);
  const int part = warp % p.warps_k, team = warp / p.warps_k, teams = kWarps / p.warps_k;
  const int begin = p.steps * part / p.warps_k, end = p.steps * (part + 1) / p.warps_k;
  float acc[kStrips][4] = {};
  bool arrived = false;
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

// Rows that each block rounds in about the time of a launch.
bool Rounds(int64_t rows, int64_t k) {
  return rows * ((k + kUnit - 1) / kUnit) <= kWarps * kUnitsMax;
}

// Strips of a block: the multiprocessor that has most has as few as can be; of equals the most,
// whose rows are rounded once. 0: the matrix is not for this kernel.
int StripsOfBlock(int64_t rows, int64_t n, int64_t k) {
  const int64_t strips = n / kStripRows;
  int best = 0;
  int64_t least = INT64_MAX;
  for (const int each : {1, 2, 7}) {
    const int64_t bytes =
        Places(each, static_cast<int>(k / 128), static_cast<int>(rows), rows > kHalfRows).end;
    const int64_t blocks = strips / each;
    const int64_t most = (blocks + kMultiprocessors - 1) / kMultiprocessors;
    if (strips % each != 0 || most * bytes > kSharedMax || most * each > least) continue;
    least = most * each;
    best = each;
  }
  return best;
}

template <int kStrips>
void Launch(const Params& p, cudaStream_t stream) {
  const bool tall = p.rows > kHalfRows;
  const int bytes = Places(kStrips, p.steps, p.rows, tall).end;
  const auto kernel = tall ? Fp8FewRowsKernel<kStrips, true> : Fp8FewRowsKernel<kStrips, false>;
  CheckCuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "FP8 product of few rows");
  const Status launched = LaunchOverlapped(
      "FP8 product of few rows", kernel, dim3(static_cast<unsigned>(p.strips / kStrips)),
      dim3(kThreads), static_cast<size_t>(bytes), stream, 1, p);
  CheckLaunch("FP8 product of few rows");
  BT_CHECK(launched.ok());
}

bool Takes(const TensorView& out, const TensorView& x, int64_t x_columns, const PackedMatrix& w) {
  return w.form == WeightForm::kFp8Block && w.quantise_input && w.count == 1 && w.n > 0 &&
         w.n % kStripRows == 0 && w.k > 0 && w.k % 128 == 0 && w.k / 128 <= kStepsMax &&
         x.dtype == DType::kBf16 && x.dim(0) >= 1 && x.dim(0) <= kRowsMax &&
         x.dim(1) == x_columns && Aligned(w.data, 0, 16) &&
         Aligned(x.data, x.dim(0) == 1 ? 0 : x.stride[0] * 2, 16) &&
         Aligned(out.data, out.dim(0) <= 1 ? 0 : out.stride[0] * SizeOf(out.dtype),
                 2 * SizeOf(out.dtype)) &&
         Rounds(x.dim(0), w.k) && StripsOfBlock(x.dim(0), w.n, w.k) > 0;
}

void Run(const OpContext& ctx,
         const TensorView& out,
         const TensorView& x,
         const PackedMatrix& w,
         bool gated) {
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
  p.gated = gated;
  p.rows = static_cast<int32_t>(rows);
  p.out = out.data;
  p.out_stride = out.stride[0];
  p.bf16 = out.dtype == DType::kBf16;
  switch (StripsOfBlock(rows, w.n, w.k)) {
    case 1:
      return Launch<1>(p, StreamOf(ctx));
    case 2:
      return Launch<2>(p, StreamOf(ctx));
    default:
      return Launch<7>(p, StreamOf(ctx));
  }
}

}  // namespace

bool Fp8FewRowsTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return x.dim(0) <= kHalfRows && Takes(out, x, w.k, w);
}

void Fp8FewRowsProduct(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(Fp8FewRowsTakes(out, x, w) && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  Run(ctx, out, x, w, false);
}

bool Fp8FewRowsGatedTakes(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return Takes(out, x, 2 * w.k, w);
}

void Fp8FewRowsGated(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(Fp8FewRowsGatedTakes(out, x, w) && out.dim(0) == x.dim(0) && out.dim(1) == w.n);
  Run(ctx, out, x, w, true);
}

}  // namespace baltoro::cuda
