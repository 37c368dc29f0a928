#pragma once

// Linear by a plan (choose/linear.h), for what asks for plans of its own.

#include "ops/cuda/choose/linear.h"
#include "ops/cuda/linear/tiles/tiles.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// What Linear is asked, with what the context has of x (Beside::rounded).
LinearQuestion QuestionOf(const OpContext& ctx,
                          const TensorView& out,
                          const TensorView& x,
                          const PackedMatrix& w);
// As Linear: `plan` is of that question.
void RunLinear(const OpContext& ctx,
               const LinearPlan& plan,
               TensorView out,
               TensorView x,
               const PackedMatrix& w);

// Linear of rows that are codes already (QuantisedRows of a kFp8Block matrix); `plan` is of a
// question with LinearInput::kCodes.
void RunLinearOfCodes(const OpContext& ctx,
                      const LinearPlan& plan,
                      TensorView out,
                      const QuantisedRows& in,
                      const PackedMatrix& w);

// Of gate and up in rows of x (LinearInput::kGateUp).
GatedLinearPlan GatedPlanOf(const TensorView& out, const TensorView& x, const PackedMatrix& w);

}  // namespace baltoro::cuda
