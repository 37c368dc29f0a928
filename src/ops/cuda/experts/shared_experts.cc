// The shared experts' second product, where it is not in the bank: SiLU * mul of the first one's
// rows, and a product of the linear family.

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/experts/expert_bank.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/linear/fp8_rows16.h"
#include "ops/cuda/linear/linear.h"
#include "ops/cuda/linear/tiles/tiles.h"

namespace baltoro::cuda {

void AddShared(const OpContext& ctx, const ExpertBankArgs& args, MoeGated gated) {
  const GatedLinearPlan plan = GatedPlanOf(args.out, args.shared, args.shared_down);
  const int64_t tokens = args.x.dim(0), width = args.shared_down.k;
  Explained(ctx, "shared experts", plan, &args.shared_down);
  switch (plan.way) {
    case GatedWay::kInProduct:
      Fp8Rows16Gated(ctx, plan.product.as<Fp8Rows16Plan>(), args.out, args.shared,
                     args.shared_down);
      break;
    case GatedWay::kAsCodes: {
      const QuantisedRows codes = gated.codes != nullptr
                                      ? QuantisedRows{gated.codes, width, gated.scales, width / 128}
                                      : SwigluQuantise(ctx, args.shared, args.shared_down);
      RunLinearOfCodes(ctx, plan.product, args.out, codes, args.shared_down);
      break;
    }
    case GatedWay::kAsRows: {
      const bool made = gated.out != nullptr;
      if (!made) {
        gated.out = ctx.scratch->AllocateArray<__nv_bfloat16>(static_cast<size_t>(tokens * width));
      }
      const TensorView rows(gated.out, DType::kBf16, {tokens, width});
      if (!made) Swiglu(ctx, rows, args.shared);
      RunLinear(ctx, plan.product, args.out, rows, args.shared_down);
      break;
    }
  }
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
  const GatedWay way = GatedPlanOf(args.out, args.shared, args.shared_down).way;
  if (args.shared.dtype != DType::kBf16 || way == GatedWay::kInProduct || width % 8 != 0 ||
      !FactsOf(args.shared).aligned(16)) {
    return {};
  }
  const auto elements = static_cast<size_t>(args.x.dim(0) * width);
  MoeGated to = GatedRows(args);
  if (way == GatedWay::kAsCodes) {
    to.codes = ctx.scratch->AllocateArray<char>(elements);
    to.scales = ctx.scratch->AllocateArray<float>(elements / 128);
  } else {
    to.out = ctx.scratch->AllocateArray<__nv_bfloat16>(elements);
  }
  return to;
}

}  // namespace baltoro::cuda
