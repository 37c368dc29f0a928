#include "base/check.h"
#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/launch/card.h"
#include "ops/cuda/launch/explain.h"
#include "ops/cuda/linear/bf16_rows1024.h"
#include "ops/cuda/linear/bf16_rows128.h"
#include "ops/cuda/linear/bf16_rows16.h"
#include "ops/cuda/linear/fp8_rows16.h"
#include "ops/cuda/linear/fp8_rows256.h"
#include "ops/cuda/linear/linear.h"

namespace baltoro::cuda {

ExpertInputsQuestion QuestionOf(const OpContext& ctx, const MoeInputArgs& args) {
  const LinearQuestion shared = QuestionOf(ctx, args.shared, args.x, args.shared_gate_up);
  return {.x = args.norm != nullptr ? FactsOf(args.norm->rows) : shared.x,
          .norm = args.norm != nullptr,
          .coded = shared.coded,
          .codes_aligned = shared.codes_aligned,
          .gate_up = shared.w,
          .shared = shared.out,
          .router = FactsOf(args.router),
          .logits = FactsOf(args.logits)};
}

namespace {

// Both in one launch.
void Together(const OpContext& ctx, const LinearPlan& plan, const MoeInputArgs& args) {
  const TensorView &shared = args.shared, &logits = args.logits, &x = args.x;
  const PackedMatrix &gate_up = args.shared_gate_up, &router = args.router;
  switch (plan.kernel) {
    case LinearKernel::kBf16Rows16:
      // x is written, without codes.
      if (args.norm != nullptr && RoundedOf(ctx) != nullptr) RoundedOf(ctx)->of = nullptr;
      return Bf16Rows16Products(ctx, plan.as<Bf16Rows16Plan>(), shared, gate_up, logits, router, x,
                                args.norm);
    case LinearKernel::kBf16Rows128:
      return Bf16Rows128Products(ctx, plan.as<Bf16Rows128Plan>(), shared, gate_up, logits, router,
                                 x);
    case LinearKernel::kBf16Rows1024:
      return Bf16Rows1024Products(ctx, plan.as<Bf16Rows1024Plan>(), shared, gate_up, logits, router,
                                  x);
    case LinearKernel::kFp8Rows16:
      return Fp8RouterProducts(ctx, plan.as<Fp8Rows16Plan>(), args);
    case LinearKernel::kFp8Rows256: {
      const RowSource rows{.x = x.data, .stride = x.stride[0], .rows = x.dim(0), .k = gate_up.k};
      return Fp8Rows256Router(ctx, plan.as<Fp8Rows256Plan>(), args,
                              QuantiseRows(ctx, rows, gate_up, plan.input));
    }
    default:
      BT_CHECK(false);
  }
}

// Both products, of the same rows, in as few launches as the shapes allow.
void Products(const OpContext& ctx, const MoeInputArgs& args) {
  const TensorView &shared = args.shared, &logits = args.logits, &x = args.x;
  const PackedMatrix &gate_up = args.shared_gate_up, &router = args.router;
  const ExpertInputsPlan plan = ChooseExpertInputs(QuestionOf(ctx, args), ThisCard());
  Explained(ctx, "router and shared experts", plan, &gate_up);
  switch (plan.order) {
    case ExpertInputsOrder::kTogether:
      return Together(ctx, plan.shared, args);
    case ExpertInputsOrder::kRouterFirst:
      Bf16Rows1024Product(ctx, plan.router.as<Bf16Rows1024Plan>(), logits, x, router);
      if (plan.reads_codes) {
        const QuantisedRows codes = KnownRows(ctx, x.data, x.stride[0], x.dim(0), gate_up.k);
        return Fp8Rows256Product(ctx, plan.shared.as<Fp8Rows256Plan>(), shared, codes, gate_up);
      }
      return RunLinear(ctx, plan.shared, shared, x, gate_up);
    case ExpertInputsOrder::kSharedFirst:
      RunLinear(ctx, plan.shared, shared, x, gate_up);
      return RunRouter(ctx, plan.router, logits, x, router);
  }
}

}  // namespace

void MoeInputs(const OpContext& ctx, const MoeInputArgs& args) {
  if (args.x.dim(0) > 0) Products(ctx, args);
  if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
}

}  // namespace baltoro::cuda
