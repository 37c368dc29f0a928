// Rows as products take them: bf16, e4m3 codes with a scale for each 128 columns, or s8 codes with
// one scale; padded with zeros to whole steps of 128 columns. From bf16 rows or from gate and up.

#include <cuda_fp8.h>
#include <math_constants.h>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/fp8_round_device.cuh"
#include "ops/cuda/moe_device.cuh"
#include "ops/cuda/product.h"
#include "ops/cuda/product_layout.h"

namespace baltoro::cuda {
namespace {

constexpr int kThreads = 256;

struct QuantiseParams {
  const void* x;
  int64_t stride;
  int32_t k, steps;
  void* out;      // [rows, 128 steps]
  float* scales;  // [rows, steps] or [rows]
  bool aligned;   // rows of x, to 8 bytes
  bool fixed;     // kInt8Static
  float input_scale, input_offset;
};

struct PlainRow {
  const __nv_bfloat16* x;
  int k;
  __device__ PlainRow(const QuantiseParams& p, int64_t row)
      : x(static_cast<const __nv_bfloat16*>(p.x) + row * p.stride), k(p.k) {}
  __device__ float operator()(int column) const {
    return column < k ? __bfloat162float(x[column]) : 0;
  }
};

struct GatedRow {
  const float* x;
  int k;
  __device__ GatedRow(const QuantiseParams& p, int64_t row)
      : x(static_cast<const float*>(p.x) + row * p.stride), k(p.k) {}
  __device__ float operator()(int column) const {
    if (column >= k) return 0;
    const float gate = x[column];
    return gate / (1.0f + __expf(-gate)) * x[k + column];
  }
};

struct F32Row {
  const float* x;
  int k;
  __device__ F32Row(const QuantiseParams& p, int64_t row)
      : x(static_cast<const float*>(p.x) + row * p.stride), k(p.k) {}
  __device__ float operator()(int column) const { return column < k ? __ldcg(x + column) : 0; }
};

// bf16 as they are. Grid: rows.
template <class Row>
__global__ void __launch_bounds__(kThreads) PadKernel(QuantiseParams p) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const Row row(p, blockIdx.x);
  auto* out = static_cast<__nv_bfloat162*>(p.out) + blockIdx.x * int64_t{64} * p.steps;
  for (int i = threadIdx.x; i < 64 * p.steps; i += kThreads) {
    out[i] = __floats2bfloat162_rn(row(2 * i), row(2 * i + 1));
  }
}

// Four neighbouring columns of a row, zeros beyond the last; 8-byte loads where rows allow it.
__device__ __forceinline__ void LoadFour(const PlainRow& row,
                                         int column,
                                         bool aligned,
                                         float (&v)[4]) {
  if (!aligned || column + 4 > row.k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = row(column + i);
    return;
  }
  const uint2 raw = *reinterpret_cast<const uint2*>(row.x + column);
  v[0] = __uint_as_float(raw.x << 16);
  v[1] = __uint_as_float(raw.x & 0xffff0000u);
  v[2] = __uint_as_float(raw.y << 16);
  v[3] = __uint_as_float(raw.y & 0xffff0000u);
}
template <class Row>
__device__ __forceinline__ void LoadFour(const Row& row, int column, bool, float (&v)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) v[i] = row(column + i);
}

// A warp a block of 128. Grid: rows, blocks of kThreads / 32 steps.
template <class Row>
__global__ void __launch_bounds__(kThreads) Fp8Kernel(QuantiseParams p) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int step = blockIdx.y * (kThreads / 32) + threadIdx.x / 32;
  if (step >= p.steps) return;
  const Row row(p, blockIdx.x);
  const int lane = threadIdx.x % 32;
  float v[4], largest = 1e-4f;
  LoadFour(row, step * 128 + lane * 4, p.aligned, v);
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = fmaxf(largest, fabsf(v[i]));
  for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
  const float scale = __fdiv_rn(largest, 448.0f);
  __nv_fp8_storage_t codes[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    codes[i] = __nv_cvt_float_to_fp8(__fdiv_rn(v[i], scale), __NV_SATFINITE, __NV_E4M3);
  }
  const int64_t block = static_cast<int64_t>(blockIdx.x) * p.steps + step;
  if (lane == 0) p.scales[block] = scale;
  static_cast<uchar4*>(p.out)[block * 32 + lane] =
      make_uchar4(codes[0], codes[2], codes[1], codes[3]);
}

// The same for bf16 rows of whole blocks, aligned to 16 bytes: kUnits times 256 columns a warp, all
// asked for at once. Grid: units of all rows.
template <int kUnits>
__global__ void __launch_bounds__(kThreads) Fp8PlainKernel(QuantiseParams p, int rows) {
  AllowNextKernel();
  WaitForEarlierKernels();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int in_row = (p.steps + 1) / 2;
  const int first = (blockIdx.x * (kThreads / 32) + warp) * kUnits;
  uint4 raw[kUnits];
  int row[kUnits], column[kUnits];
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    row[i] = (first + i) / in_row;
    column[i] = (first + i - row[i] * in_row) * 256 + lane * 8;
    raw[i] = make_uint4(0, 0, 0, 0);
    if (row[i] >= rows || column[i] >= p.k) continue;
    raw[i] = __ldcg(reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p.x) +
                                                   row[i] * p.stride + column[i]));
  }
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (row[i] >= rows) break;
    float v[8], scale;
    WidenEight(raw[i], v);
    const uint2 codes = RoundEight(v, scale);
    if (column[i] >= p.k) continue;
    const int64_t at = static_cast<int64_t>(row[i]) * p.k + column[i];
    *reinterpret_cast<uint2*>(static_cast<char*>(p.out) + at) = codes;
    if (lane % 16 == 0) p.scales[at / 128] = scale;
  }
}

// Numbers that are not finite make the whole row NaN, through its scale. Grid: rows.
template <class Row>
__global__ void __launch_bounds__(kThreads) Int8Kernel(QuantiseParams p) {
  __shared__ float largests[kThreads / 32];
  AllowNextKernel();
  WaitForEarlierKernels();
  const Row row(p, blockIdx.x);
  float largest = 0;  // infinite where a number is not finite
  for (int i = threadIdx.x; i < p.k; i += kThreads) {
    const float v = row(i);
    const bool broken = p.fixed ? isnan(v) : !isfinite(v);
    largest = fmaxf(largest, broken ? CUDART_INF_F : p.fixed ? 0.0f : fabsf(v));
  }
  for (int d = 16; d > 0; d /= 2) largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, d));
  if (threadIdx.x % 32 == 0) largests[threadIdx.x / 32] = largest;
  __syncthreads();
  for (int w = 0; w < kThreads / 32; ++w) largest = fmaxf(largest, largests[w]);
  const bool broken = isinf(largest);
  const float scale = p.fixed ? p.input_scale : __fdiv_rn(largest, 127.0f);
  auto* out = static_cast<char4*>(p.out) + blockIdx.x * int64_t{32} * p.steps;
  for (int i = threadIdx.x; i < 32 * p.steps; i += kThreads) {
    signed char codes[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int column = 4 * i + e;
      float q = 0;
      if (column < p.k && !broken && scale != 0) q = __fdiv_rn(row(column), scale);
      if (column < p.k && p.fixed) q = __fadd_rn(q, p.input_offset);
      codes[e] = static_cast<signed char>(fminf(fmaxf(rintf(q), -128.0f), 127.0f));
    }
    out[i] = make_char4(codes[0], codes[1], codes[2], codes[3]);
  }
  if (threadIdx.x == 0) p.scales[blockIdx.x] = broken ? CUDART_NAN_F : p.fixed ? 1.0f : scale;
}

void LaunchKernel(void (*kernel)(QuantiseParams),
                  dim3 grid,
                  const QuantiseParams& p,
                  cudaStream_t stream) {
  const Status launched =
      LaunchOverlapped("quantisation of rows", kernel, grid, dim3(kThreads), 0, stream, 1, p);
  CheckLaunch("quantisation of rows");
  BT_CHECK(launched.ok());
}

template <class Row>
void LaunchFp8(const QuantiseParams& p, int64_t rows, cudaStream_t stream) {
  const int in_block = kThreads / 32;
  const dim3 grid(static_cast<unsigned>(rows),
                  static_cast<unsigned>((p.steps + in_block - 1) / in_block));
  LaunchKernel(Fp8Kernel<Row>, grid, p, stream);
}

template <int kUnits>
void LaunchFp8Plain(const QuantiseParams& p, int64_t rows, cudaStream_t stream) {
  const int64_t in_block = int64_t{kThreads / 32} * kUnits, units = rows * ((p.steps + 1) / 2);
  const dim3 grid(static_cast<unsigned>((units + in_block - 1) / in_block));
  const Status launched = LaunchOverlapped("quantisation of rows", Fp8PlainKernel<kUnits>, grid,
                                           dim3(kThreads), 0, stream, 1, p, static_cast<int>(rows));
  CheckLaunch("quantisation of rows");
  BT_CHECK(launched.ok());
}

template <class Row>
void Launch(
    WeightForm form, bool quantise, const QuantiseParams& p, int64_t rows, cudaStream_t stream) {
  if (form == WeightForm::kFp8Block && quantise) return LaunchFp8<Row>(p, rows, stream);
  auto* kernel = PadKernel<Row>;
  if (form == WeightForm::kInt8 || form == WeightForm::kInt4 || form == WeightForm::kInt8Static) {
    kernel = Int8Kernel<Row>;
  }
  LaunchKernel(kernel, dim3(static_cast<unsigned>(rows)), p, stream);
}

bool Aligned(const void* x, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(x) % 16 == 0 && row_bytes % 16 == 0;
}

}  // namespace

// Those of the norm before, or some of them.
QuantisedRows KnownRows(
    const OpContext& ctx, const void* x, int64_t stride, int64_t rows, int64_t k) {
  if (RoundedOf(ctx) == nullptr || RoundedOf(ctx)->of == nullptr) return {};
  const RoundedRows& known = *RoundedOf(ctx);
  const int64_t at = static_cast<const char*>(x) - static_cast<const char*>(known.of);
  const int64_t row = known.stride == 0 ? 0 : at / (known.stride * 2);
  if (at < 0 || at != row * known.stride * 2 || row + rows > known.rows || k != known.width ||
      (rows != 1 && stride != known.stride)) {
    return {};
  }
  const int64_t steps = k / 128;
  return {static_cast<const char*>(known.codes) + row * k, k, known.scales + row * steps, steps};
}

QuantisedRows QuantiseRows(const OpContext& ctx, const RowSource& source, const PackedMatrix& w) {
  const bool integers = w.form == WeightForm::kInt8 || w.form == WeightForm::kInt4 ||
                        w.form == WeightForm::kInt8Static;
  const bool fp8 = w.form == WeightForm::kFp8Block && w.quantise_input;
  if (!integers && !fp8 && !source.gated && w.k % 8 == 0 && Aligned(source.x, source.stride * 2)) {
    return {source.x, source.stride, nullptr, 0};
  }
  const int64_t steps = (source.k + 127) / 128;
  if (fp8 && !source.gated && !source.f32) {
    const QuantisedRows known = KnownRows(ctx, source.x, source.stride, source.rows, source.k);
    if (known.x != nullptr) return known;
  }
  const bool bytes = integers || fp8;
  QuantiseParams p = {};
  p.x = source.x;
  p.stride = source.stride;
  p.k = static_cast<int32_t>(source.k);
  p.steps = static_cast<int32_t>(steps);
  p.out = ctx.scratch->Allocate(static_cast<size_t>(source.rows * steps * 128 * (bytes ? 1 : 2)));
  if (integers || fp8) {
    p.scales =
        ctx.scratch->AllocateArray<float>(static_cast<size_t>(source.rows * (fp8 ? steps : 1)));
  }
  p.aligned = reinterpret_cast<uintptr_t>(source.x) % 8 == 0 && source.stride % 4 == 0;
  p.fixed = w.form == WeightForm::kInt8Static;
  p.input_scale = w.input_scale;
  p.input_offset = w.input_offset;
  if (fp8 && !source.f32 && !source.gated && source.k % 128 == 0 &&
      Aligned(source.x, source.stride * 2)) {
    // Few rows: as many warps as there can be.
    if (source.rows * steps <= 16 * 1024) {
      LaunchFp8Plain<1>(p, source.rows, StreamOf(ctx));
    } else {
      LaunchFp8Plain<4>(p, source.rows, StreamOf(ctx));
    }
  } else if (source.f32) {
    BT_CHECK(fp8);
    LaunchFp8<F32Row>(p, source.rows, StreamOf(ctx));
  } else if (source.gated) {
    Launch<GatedRow>(w.form, w.quantise_input, p, source.rows, StreamOf(ctx));
  } else {
    Launch<PlainRow>(w.form, w.quantise_input, p, source.rows, StreamOf(ctx));
  }
  return {p.out, steps * 128, p.scales, fp8 ? steps : 1};
}

}  // namespace baltoro::cuda
