#pragma once

// The expert bank of every weight form (ExpertBank in cuda_ops.h): the question that its arguments
// are, and launches by a plan (choose/experts.h).

#include "ops/cuda/choose/experts.h"
#include "ops/cuda/experts/route/bank_prepare.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// `knows_rows` false: while a step is put together, where nothing is known of x but its shape.
ExpertsQuestion ExpertsQuestionOf(const OpContext& ctx,
                                  const ExpertBankArgs& args,
                                  bool knows_rows = true);
// What would be chosen, asked while the operations ahead are still being put together: whether the
// norm behind is added to, x read in matrix order, the experts chosen here.
ExpertsPlan PlanBank(const OpContext& ctx, const ExpertBankArgs& args);

// As ExpertBank, by a plan of the caller's.
void ExpertBankBy(const OpContext& ctx, const ExpertBankArgs& args, const ExpertsPlan& plan);

// Of kGroupedProducts, without the shared experts (grouped_products_bank.cc). `slot_of` is on the
// device, null where experts are slots.
void GroupedBank(const OpContext& ctx,
                 const ExpertBankArgs& args,
                 const ExpertsPlan& plan,
                 const int32_t* slot_of);

// The shared experts' part of `out` by a product of its own (shared_experts.cc); `gated` has its
// input, where GatedByPreparation has said what to make of it.
void AddShared(const OpContext& ctx, const ExpertBankArgs& args, MoeGated gated);
// What AddShared would make of `shared` first, to be made by a preparation instead; its results are
// null where that is nothing.
MoeGated GatedByPreparation(const OpContext& ctx, const ExpertBankArgs& args);
// Of the shared experts' first product, without results.
MoeGated GatedRows(const ExpertBankArgs& args);

}  // namespace baltoro::cuda
