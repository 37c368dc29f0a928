// Rows as products take them: bf16, e4m3 codes with a scale for each 128 columns, or s8 codes with
// one scale; padded with zeros to whole steps of 128 columns. From bf16 rows or from gate and up.

#include <cuda_fp8.h>
#include <math_constants.h>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/overlapped_launch.h"
#include "ops/cuda/layout/product_layout.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/rows/fp8_round_device.cuh"
#include "ops/cuda/rows/quantise.h"

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

template <typename... Given>
void Launch(void (*kernel)(QuantiseParams, Given...),
            const LaunchShape& shape,
            const LaunchStream& stream,
            const LaunchNote& note,
            const QuantiseParams& p,
            Given... given) {
  const dim3 grid(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y));
  const Status launched =
      LaunchOverlapped(note, kernel, grid, dim3(kThreads), 0, stream, 1, p, given...);
  CheckLaunch(note.kernel);
  BT_CHECK(launched.ok());
}

template <class Row>
void LaunchRows(const QuantisePlan& plan,
                const LaunchNote& note,
                const QuantiseParams& p,
                const LaunchStream& stream) {
  switch (plan.kernel) {
    case QuantiseKernel::kFp8Rows:
      return Launch(Fp8Kernel<Row>, plan.launch, stream, note, p);
    case QuantiseKernel::kInt8Rows:
      return Launch(Int8Kernel<Row>, plan.launch, stream, note, p);
    default:
      return Launch(PadKernel<Row>, plan.launch, stream, note, p);
  }
}

// Int8 and int4 weights read the same codes.
bool SameCodes(WeightForm a, WeightForm b) {
  return a == b || (ReadsCodes(a, false) && ReadsCodes(b, false));
}

QuantiseQuestion QuestionOf(const OpContext& ctx, const RowSource& source, const PackedMatrix& w) {
  const int64_t row_bytes = source.stride * (source.f32 ? 4 : 2);
  const bool plain = !source.gated && !source.f32;
  return {
      .x = {.type = source.f32 ? DType::kF32 : DType::kBf16,
            .rows = source.rows,
            .width = source.k,
            .row_bytes = row_bytes,
            .alignment = AlignmentOf(source.x, row_bytes)},
      .gated = source.gated,
      .f32 = source.f32,
      .known = plain &&
               KnownRows(ctx, source.x, source.stride, source.rows, source.k, w.form).x != nullptr,
      .k = source.k,
      .form = w.form,
      .quantise_input = w.quantise_input};
}

}  // namespace

// Those of the norm before, or of other replicas, or some of them.
QuantisedRows KnownRows(
    const OpContext& ctx, const void* x, int64_t stride, int64_t rows, int64_t k, WeightForm form) {
  for (const RoundedRows* known :
       {static_cast<const RoundedRows*>(RoundedOf(ctx)), GatheredOf(ctx)}) {
    if (known == nullptr || known->of == nullptr || !SameCodes(known->form, form)) continue;
    const int64_t at = static_cast<const char*>(x) - static_cast<const char*>(known->of);
    const int64_t row = known->stride == 0 ? 0 : at / (known->stride * 2);
    if (at < 0 || at != row * known->stride * 2 || row + rows > known->rows || k != known->width ||
        (rows != 1 && stride != known->stride)) {
      continue;
    }
    const int64_t scales = ScalesOfCodes(form, k);
    return {static_cast<const char*>(known->codes) + row * k, k, known->scales + row * scales,
            scales};
  }
  return {};
}

bool KnownAsCodesAlone(const OpContext& ctx, const void* x) {
  const RoundedRows* const known = GatheredOf(ctx);
  if (known == nullptr || known->of == nullptr) return false;
  const int64_t at = static_cast<const char*>(x) - static_cast<const char*>(known->of);
  return at >= 0 && at < known->rows * known->stride * 2;
}

QuantisedRows QuantiseRows(const OpContext& ctx, const RowSource& source, const PackedMatrix& w) {
  return QuantiseRows(ctx, source, w, ChooseQuantise(QuestionOf(ctx, source, w)));
}

QuantisedRows QuantiseRows(const OpContext& ctx,
                           const RowSource& source,
                           const PackedMatrix& w,
                           const QuantisePlan& plan) {
  const bool codes_known = plan.kernel == QuantiseKernel::kKnown;
  BT_CHECK(codes_known || !KnownAsCodesAlone(ctx, source.x));  // or codes would be read as rows
  if (plan.kernel == QuantiseKernel::kNone) return {source.x, source.stride, nullptr, 0};
  if (codes_known) {
    const QuantisedRows known =
        KnownRows(ctx, source.x, source.stride, source.rows, source.k, w.form);
    BT_CHECK(known.x != nullptr);
    return known;
  }
  const int64_t steps = (source.k + 127) / 128;
  const bool bytes = plan.kernel != QuantiseKernel::kPad;
  const bool fp8 = bytes && plan.kernel != QuantiseKernel::kInt8Rows;
  QuantiseParams p = {};
  p.x = source.x;
  p.stride = source.stride;
  p.k = static_cast<int32_t>(source.k);
  p.steps = static_cast<int32_t>(steps);
  p.out = ctx.scratch->Allocate(static_cast<size_t>(source.rows * steps * 128 * (bytes ? 1 : 2)));
  if (bytes) {
    p.scales =
        ctx.scratch->AllocateArray<float>(static_cast<size_t>(source.rows * (fp8 ? steps : 1)));
  }
  p.aligned = reinterpret_cast<uintptr_t>(source.x) % 8 == 0 && source.stride % 4 == 0;
  p.fixed = w.form == WeightForm::kInt8Static;
  p.input_scale = w.input_scale;
  p.input_offset = w.input_offset;
  LaunchNote note = "quantisation of rows";
  const int64_t size = source.f32 || source.gated ? 4 : 2;
  const int64_t width = source.k * (source.gated ? 2 : 1);  // gated: both halves
  note.reads = RowsRegion(source.x, source.rows, source.stride * size, width * size);
  note.writes = {Region{p.out, source.rows * steps * 128 * (bytes ? 1 : 2)},
                 RegionOf(p.scales, p.scales == nullptr ? 0 : source.rows * (fp8 ? steps : 1))};
  if (plan.kernel == QuantiseKernel::kFp8Units) {
    Launch(plan.units == 1 ? Fp8PlainKernel<1> : Fp8PlainKernel<4>, plan.launch, StreamOf(ctx),
           note, p, static_cast<int>(source.rows));
  } else if (source.f32) {
    BT_CHECK(plan.kernel == QuantiseKernel::kFp8Rows);
    Launch(Fp8Kernel<F32Row>, plan.launch, StreamOf(ctx), note, p);
  } else if (source.gated) {
    LaunchRows<GatedRow>(plan, note, p, StreamOf(ctx));
  } else {
    LaunchRows<PlainRow>(plan, note, p, StreamOf(ctx));
  }
  return {p.out, steps * 128, p.scales, fp8 ? steps : 1};
}

}  // namespace baltoro::cuda
