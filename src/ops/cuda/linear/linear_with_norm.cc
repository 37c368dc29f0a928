// Norms that are shared by the products around them (norm_begun.h).

#include "base/check.h"
#include "ops/cuda/choose/linear.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/norm_begun.h"

namespace baltoro::cuda {

LinearPlan PlanToNorm(const BegunNorm& norm, const TensorView& x, const PackedMatrix& w) {
  return ChooseLinearToNorm({.x = FactsOf(x), .w = FactsOf(w), .out = FactsOf(norm.residual)},
                            NormIsInVectors(norm), ThisCard());
}

LinearPlan PlanFromNorm(const TensorView& out, const BegunNorm& norm, const PackedMatrix& w) {
  return ChooseLinearFromNorm({.x = FactsOf(norm.rows), .w = FactsOf(w), .out = FactsOf(out)},
                              NormIsInVectors(norm), ThisCard());
}

BegunNormArgs BegunNormArgsOf(const BegunNorm& norm) {
  BT_CHECK(NormIsInVectors(norm));
  return {.residual = norm.residual.as<float>(),
          .residual_stride = norm.residual.stride[0],
          .weight = norm.weight.as<float>(),
          .rows = static_cast<__nv_bfloat16*>(norm.rows.data),
          .rows_stride = norm.rows.stride[0],
          .squares = norm.squares.as<float>(),
          .width = static_cast<int>(norm.residual.dim(1)),
          .eps = norm.eps};
}

bool NormIsInVectors(const BegunNorm& norm) {
  const int64_t rows = norm.residual.dim(0), width = norm.residual.dim(1);
  BT_CHECK(norm.residual.dtype == DType::kF32 && norm.weight.dtype == DType::kF32 &&
           norm.squares.dtype == DType::kF32);
  BT_CHECK(norm.weight.dim(0) == width && norm.rows.dim(0) == rows && norm.rows.dim(1) == width);
  BT_CHECK(norm.squares.dim(0) == rows && norm.squares.dim(1) == BegunNorm::kParts);
  return norm.rows.dtype == DType::kBf16 && rows >= 1 && rows <= BegunNorm::kRowsMax &&
         width % 8 == 0 && FactsOf(norm.residual).aligned(16) && FactsOf(norm.rows).aligned(16) &&
         norm.squares.contiguous() && AlignmentOf(norm.weight.data) >= 16 &&
         AlignmentOf(norm.squares.data) >= 16;
}

void LinearToNorm(const OpContext& ctx,
                  const BegunNorm& norm,
                  TensorView x,
                  const PackedMatrix& w) {
  const LinearPlan plan = PlanToNorm(norm, x, w);
  BT_CHECK(plan.kernel == LinearKernel::kBf16Rows16);
  Explained(ctx, "linear, norm behind", plan, &w);
  Bf16Rows16Product(ctx, plan.as<Bf16Rows16Plan>(), norm.residual, x, w, {.to = &norm});
}

void LinearFromNorm(const OpContext& ctx,
                    TensorView out,
                    const BegunNorm& norm,
                    const PackedMatrix& w) {
  const LinearPlan plan = PlanFromNorm(out, norm, w);
  BT_CHECK(plan.kernel == LinearKernel::kBf16Rows16);
  Explained(ctx, "linear, norm ahead", plan, &w);
  Bf16Rows16Product(ctx, plan.as<Bf16Rows16Plan>(), out, norm.rows, w, {.from = &norm});
}

}  // namespace baltoro::cuda
