#pragma once

// Operations of OpsTable joined into fewer launches, for steps of few tokens, where a launch is
// most of what an operation costs. Each gives what the operations it joins would give, bit for bit
// where nothing else is said. All only queue launches and can be captured. Tensors are device
// memory, T rows; rows may be strided.

#include "ops/cuda/choose/inputs.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {

// What lies between the first products of attention and the second (AttentionInputArgs).
// The latent and the key of qkv_a stay as they are.
void AttentionInputs(const OpContext& ctx, const AttentionInputArgs& args);
AttentionInputsQuestion QuestionOf(const AttentionInputArgs& args);

// The first products of a layer of experts, and its routing; the two products are one launch where
// choose/inputs.h has a plan for it.
void MoeInputs(const OpContext& ctx, const MoeInputArgs& args);
ExpertInputsQuestion QuestionOf(const OpContext& ctx, const MoeInputArgs& args);

// logits = x * w^T, then route; logits [T, E] f32 hold the product afterwards. Plain bf16 weights
// and few rows (router_rows16) go a way of their own, on which sums run in another order than
// Linear's.
void Router(const OpContext& ctx,
            TensorView ids,
            TensorView weights,
            TensorView logits,
            TensorView x,
            const PackedMatrix& w,
            TensorView bias,
            const RouterParams& params);

// ids[t] become -1, no expert, where slots[t] is below 0: of rows that nobody reads.  ids [T, k]
// i32, contiguous; slots [T] i64.
void ChooseNone(const OpContext& ctx, TensorView ids, TensorView slots);

// The product of Router, by a plan (choose/inputs.h).
RouterQuestion QuestionOf(const TensorView& logits, const TensorView& x, const PackedMatrix& w);
void RunRouter(const OpContext& ctx,
               const LinearPlan& plan,
               TensorView logits,
               TensorView x,
               const PackedMatrix& w);
// logits = x * w^T. The weights are read before the kernel ahead has ended, so that its end hides
// them.
void RouterProduct(const OpContext& ctx,
                   const RouterRows16Plan& plan,
                   TensorView logits,
                   TensorView x,
                   const PackedMatrix& w);

}  // namespace baltoro::cuda
