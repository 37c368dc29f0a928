#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/fp8_bank.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/fp8_middle.h"
#include "ops/cuda/product.h"
#include "ops/cuda/tens_rows.h"

namespace baltoro::cuda {
namespace {

// Rows up to which our kernel is at the floor of the weights' bytes.
constexpr int64_t kFewRows = 16;
// Rows from which reading them again for every strip of weights takes longest.
constexpr int64_t kManyRows = 32;
// Rows up to which the FP8 kernel for tens of rows goes before the one for hundreds.
constexpr int64_t kTensOfRows = 128;

bool Many(int64_t rows, const PackedMatrix& w) {
  return w.form == WeightForm::kFp8Block ? Fp8WideSuits(rows, w.n) : rows > kManyRows;
}

bool Aligned(const void* data, int64_t row_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
}

// Of coded matrices, and of plain ones what no other kernel takes. Returns as LinearOfCodes.
bool MultiplyRows(const OpContext& ctx,
                  const TensorView& out,
                  const QuantisedRows& in,
                  const PackedMatrix& w) {
  const int64_t rows = out.dim(0);
  const bool wide = Many(rows, w) && !IsPlain(w.form) && WideTakes(w) &&
                    (out.dtype == DType::kF32 || Aligned(out.data, out.stride[0] * 2));
  Fp8Product product;
  product.w = w;
  product.out_f32 = out.dtype == DType::kF32;
  product.x = in.x;
  product.x_row_bytes = in.x_stride;
  product.x_scales = in.x_scales;
  product.out = out.data;
  product.out_stride = out.stride[0];
  product.rows = rows;
  const bool wide_fp8 = wide && w.form == WeightForm::kFp8Block;
  const bool large =
      wide_fp8 && rows > kTensOfRows && Fp8LargeTakes(product) && Fp8LargeFills(rows, w);
  if (!large && Fp8MiddleTakes(out, w)) {
    Fp8MiddleProduct(ctx, out, in, w);
    return true;
  }
  if (wide_fp8) {
    LaunchFp8Wide(product, StreamOf(ctx), ctx.scratch);
    return large;
  }
  LaunchProduct({.w = w,
                 .x = in.x,
                 .x_stride = rows == 1 ? 0 : in.x_stride,
                 .x_scales = in.x_scales,
                 .x_scales_stride = in.x_scales_stride,
                 .out = out.data,
                 .out_type = out.dtype,
                 .out_stride = out.stride[0],
                 .rows = static_cast<int32_t>(rows),
                 .wide = wide},
                StreamOf(ctx));
  return false;
}

}  // namespace

// Plain matrices: our kernels for few and tens of rows, cuBLASLt for more. Coded ones: our kernel.
void Linear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && x.dtype == DType::kBf16);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
  BT_CHECK(x.dim(1) == w.k && out.dim(1) == w.n && out.dim(0) == x.dim(0));
  const int64_t rows = x.dim(0);
  if (rows == 0 || w.n == 0) return;
  // In this order: of 9 to 16 rows o is 2.5 us faster in a layer by the first.
  if (FewRowsTakes(out, x, w)) return FewRowsProduct(ctx, out, x, w);
  if (TensRowsTakes(out, x, w)) return TensRowsProduct(ctx, out, x, w);
  if (Fp8FewRowsTakes(ctx, out, x, w)) return Fp8FewRowsProduct(ctx, out, x, w);
  if (IsPlain(w.form)) {
    const bool takes = ProductTakes(w) && Aligned(w.data, w.k * 2) &&
                       Aligned(x.data, rows == 1 ? 0 : x.stride[0] * 2);
    if (!takes || rows > kFewRows) {
      if (w.form == WeightForm::kBf16 && BlasLinear(ctx, out, x, w)) return;
    }
    if (!takes) {
      LaunchPlainProduct(out, x, w, StreamOf(ctx));
      return;
    }
  }
  MultiplyRows(ctx, out,
               QuantiseRows(ctx, {.x = x.data, .stride = x.stride[0], .rows = rows, .k = w.k}, w),
               w);
}

bool LinearOfCodes(const OpContext& ctx,
                   TensorView out,
                   const QuantisedRows& in,
                   const PackedMatrix& w) {
  BT_CHECK(w.form == WeightForm::kFp8Block && w.quantise_input && out.rank == 2);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
  return out.num_elements() > 0 && MultiplyRows(ctx, out, in, w);
}

}  // namespace baltoro::cuda
