// The shared experts' second product, where it is not in the bank: SiLU * mul of the first one's
// rows, and a product of the linear family.

#include "ops/cuda/card.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/expert_bank.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/product.h"

namespace baltoro::cuda {
namespace {

// How it is made: a question of that family's.
enum class SharedProduct : uint8_t {
  kGated,  // one launch with its SiLU
  kCodes,  // of SiLU rounded to codes
  kRows    // of SiLU in bf16
};
SharedProduct SharedProductOf(const ExpertBankArgs& args) {
  if (GatedLinearPlan(args.out, args.shared, args.shared_down).kernel != LinearKernel::kNone) {
    return SharedProduct::kGated;
  }
  return SwigluQuantiseTakes(args.shared, args.shared_down) ? SharedProduct::kCodes
                                                            : SharedProduct::kRows;
}

}  // namespace

bool AddShared(const OpContext& ctx, const ExpertBankArgs& args, MoeGated gated) {
  const SharedProduct product = SharedProductOf(args);
  if (product == SharedProduct::kGated) {
    const LinearPlan plan = GatedLinearPlan(args.out, args.shared, args.shared_down);
    Fp8FewRowsGated(ctx, plan.as<Fp8Rows16Plan>(), args.out, args.shared, args.shared_down);
    return plan.next_waits;
  }
  const int64_t tokens = args.x.dim(0), width = args.shared_down.k;
  if (product == SharedProduct::kCodes) {
    const QuantisedRows codes = gated.codes != nullptr
                                    ? QuantisedRows{gated.codes, width, gated.scales, width / 128}
                                    : SwigluQuantise(ctx, args.shared, args.shared_down);
    return LinearOfCodes(ctx, args.out, codes, args.shared_down);
  }
  const bool made = gated.out != nullptr;
  if (!made) {
    gated.out = ctx.scratch->AllocateArray<__nv_bfloat16>(static_cast<size_t>(tokens * width));
  }
  const TensorView rows(gated.out, DType::kBf16, {tokens, width});
  if (!made) Swiglu(ctx, rows, args.shared);
  const LinearPlan plan =
      ChooseLinear(QuestionOf(ctx, args.out, rows, args.shared_down), ThisCard());
  RunLinear(ctx, plan, args.out, rows, args.shared_down);
  return plan.next_waits;
}

MoeGated GatedRows(const ExpertBankArgs& args) {
  MoeGated to;
  to.x = static_cast<const __nv_bfloat16*>(args.shared.data);
  to.x_stride = args.shared.stride[0];
  to.width = static_cast<int32_t>(args.shared_down.k);
  return to;
}

MoeGated GatedByPreparation(const OpContext& ctx, const ExpertBankArgs& args) {
  const int64_t width = args.shared_down.k;
  const SharedProduct product = SharedProductOf(args);
  if (args.shared.dtype != DType::kBf16 || product == SharedProduct::kGated || width % 8 != 0 ||
      !FactsOf(args.shared).aligned(16)) {
    return {};
  }
  const auto elements = static_cast<size_t>(args.x.dim(0) * width);
  MoeGated to = GatedRows(args);
  if (product == SharedProduct::kCodes) {
    to.codes = ctx.scratch->AllocateArray<char>(elements);
    to.scales = ctx.scratch->AllocateArray<float>(elements / 128);
  } else {
    to.out = ctx.scratch->AllocateArray<__nv_bfloat16>(elements);
  }
  return to;
}

}  // namespace baltoro::cuda
