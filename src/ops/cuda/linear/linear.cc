#include "ops/cuda/linear/linear.h"

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/fp8_bank.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/linear/fp8_rows16.h"
#include "ops/cuda/linear/fp8_rows256.h"

namespace baltoro::cuda {
namespace {

QuantisedRows KnownOf(const OpContext& ctx, const TensorView& x) {
  return KnownRows(ctx, x.data, x.stride[0], x.dim(0), x.dim(1));
}

bool CodesAligned(const QuantisedRows& codes) {
  return AlignmentOf(codes.x) >= 16 && AlignmentOf(codes.x_scales) >= 16;
}

// Of rows as the matrix reads them.
void Multiply(const OpContext& ctx,
              const LinearPlan& plan,
              const TensorView& out,
              const QuantisedRows& in,
              const PackedMatrix& w) {
  const int64_t rows = out.dim(0);
  if (plan.kernel == LinearKernel::kFp8Rows256) {
    return Fp8Rows256Product(ctx, plan.as<Fp8Rows256Plan>(), out, in, w);
  }
  if (plan.kernel == LinearKernel::kFp8Tiles) {
    Fp8Product product;
    product.w = w;
    product.out_f32 = out.dtype == DType::kF32;
    product.x = in.x;
    product.x_row_bytes = in.x_stride;
    product.x_scales = in.x_scales;
    product.out = out.data;
    product.out_stride = out.stride[0];
    product.rows = rows;
    return LaunchFp8Tiles(product, plan.as<Fp8TilesPlan>(), StreamOf(ctx), ctx.scratch);
  }
  BT_CHECK(plan.kernel == LinearKernel::kTiles);
  LaunchProduct({.w = w,
                 .x = in.x,
                 .x_stride = rows == 1 ? 0 : in.x_stride,
                 .x_scales = in.x_scales,
                 .x_scales_stride = in.x_scales_stride,
                 .out = out.data,
                 .out_type = out.dtype,
                 .out_stride = out.stride[0],
                 .rows = static_cast<int32_t>(rows)},
                plan.as<TilesPlan>(), StreamOf(ctx));
}

}  // namespace

LinearQuestion QuestionOf(const OpContext& ctx,
                          const TensorView& out,
                          const TensorView& x,
                          const PackedMatrix& w) {
  const QuantisedRows known = KnownOf(ctx, x);
  return {.x = FactsOf(x),
          .coded = known.x != nullptr,
          .codes_aligned = CodesAligned(known),
          .w = FactsOf(w),
          .out = FactsOf(out)};
}

void RunLinear(const OpContext& ctx,
               const LinearPlan& plan,
               TensorView out,
               TensorView x,
               const PackedMatrix& w) {
  switch (plan.kernel) {
    case LinearKernel::kNone:
      return;
    case LinearKernel::kBf16Rows16:
      return Bf16Rows16Product(ctx, plan.as<Bf16Rows16Plan>(), out, x, w);
    case LinearKernel::kBf16Rows128:
      return Bf16Rows128Product(ctx, plan.as<Bf16Rows128Plan>(), out, x, w);
    case LinearKernel::kBf16Rows1024:
      return Bf16Rows1024Product(ctx, plan.as<Bf16Rows1024Plan>(), out, x, w);
    case LinearKernel::kFp8Rows16:
      return Fp8Rows16Product(ctx, plan.as<Fp8Rows16Plan>(), out, x, w,
                              plan.as<Fp8Rows16Plan>().coded ? KnownOf(ctx, x) : QuantisedRows{});
    case LinearKernel::kBlas: {
      if (BlasLinear(ctx, out, x, w)) return;
      LinearQuestion question = QuestionOf(ctx, out, x, w);
      question.has_blas = false;
      return RunLinear(ctx, ChooseLinear(question, ThisCard()), out, x, w);
    }
    case LinearKernel::kPlain:
      return LaunchPlainProduct(out, x, w, StreamOf(ctx));
    case LinearKernel::kFp8Rows256:
    case LinearKernel::kFp8Tiles:
    case LinearKernel::kTiles: {
      const RowSource source{.x = x.data, .stride = x.stride[0], .rows = x.dim(0), .k = w.k};
      return Multiply(ctx, plan, out, QuantiseRows(ctx, source, w, plan.input), w);
    }
    case LinearKernel::kRouterRows16:
      BT_CHECK(false);
  }
}

void Linear(const OpContext& ctx, TensorView out, TensorView x, const PackedMatrix& w) {
  BT_CHECK(x.rank == 2 && out.rank == 2 && x.dtype == DType::kBf16);
  BT_CHECK(out.dtype == DType::kF32 || out.dtype == DType::kBf16);
  BT_CHECK(x.dim(1) == w.k && out.dim(1) == w.n && out.dim(0) == x.dim(0));
  const LinearPlan plan = ChooseLinear(QuestionOf(ctx, out, x, w), ThisCard());
  RunLinear(ctx, Explained(ctx, "linear", plan, &w), out, x, w);
}

void RunLinearOfCodes(const OpContext& ctx,
                      const LinearPlan& plan,
                      TensorView out,
                      const QuantisedRows& in,
                      const PackedMatrix& w) {
  if (plan.kernel != LinearKernel::kNone) Multiply(ctx, plan, out, in, w);
}

GatedLinearPlan GatedPlanOf(const TensorView& out, const TensorView& x, const PackedMatrix& w) {
  return ChooseGatedLinear(
      {.x = FactsOf(x), .input = LinearInput::kGateUp, .w = FactsOf(w), .out = FactsOf(out)},
      ThisCard());
}

}  // namespace baltoro::cuda
