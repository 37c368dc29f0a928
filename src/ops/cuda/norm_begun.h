#pragma once

// A norm that is shared by the kernels around it (BegunNorm in fused_args.h), as those see it.

#include <cuda_bf16.h>

#include <cstdint>

#include "ops/cuda/choose/linear.h"
#include "ops/cuda/fused_args.h"
#include "ops/ops.h"

namespace baltoro::cuda {

struct BegunNormArgs {
  static constexpr int kParts = static_cast<int>(BegunNorm::kParts);
  float* residual = nullptr;  // null: none
  int64_t residual_stride = 0;
  const float* weight = nullptr;
  __nv_bfloat16* rows = nullptr;
  int64_t rows_stride = 0;
  float* squares = nullptr;  // [T, kParts]
  int width = 0;
  float eps = 0;
};

// Checks shapes.
BegunNormArgs BegunNormArgsOf(const BegunNorm& norm);
// A fact for questions: kernels read its tensors in vectors. Checks shapes.
bool NormIsInVectors(const BegunNorm& norm);

// What shares a norm: what makes the residual, linear from x by w and the expert bank with `norm`,
// and what takes its rows, linear and MoeInputs with `norm`. Where a plan is not taken(), the
// product is not asked for so.
LinearPlan PlanToNorm(const BegunNorm& norm, const TensorView& x, const PackedMatrix& w);
LinearPlan PlanFromNorm(const TensorView& out, const BegunNorm& norm, const PackedMatrix& w);
void LinearToNorm(const OpContext& ctx, const BegunNorm& norm, TensorView x, const PackedMatrix& w);
void LinearFromNorm(const OpContext& ctx,
                    TensorView out,
                    const BegunNorm& norm,
                    const PackedMatrix& w);

}  // namespace baltoro::cuda
