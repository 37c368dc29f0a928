#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/fp8_middle.h"
#include "ops/cuda/hundred_rows.h"
#include "ops/cuda/product.h"
#include "ops/cuda/tens_rows.h"

namespace baltoro::cuda {

namespace {

// Both products, of the same rows, in as few launches as the shapes allow.
void Products(const OpContext& ctx, const MoeInputArgs& args) {
  const TensorView &shared = args.shared, &logits = args.logits, &x = args.x;
  const PackedMatrix &gate_up = args.shared_gate_up, &router = args.router;
  if (args.norm != nullptr) {
    // x is written, without codes.
    if (RoundedOf(ctx) != nullptr) RoundedOf(ctx)->of = nullptr;
    return FewRowsProducts(ctx, shared, gate_up, logits, router, x, args.norm);
  }
  // First: of 9 to 16 rows each block of the form of few rows reads all of them, 2 to 4 us more.
  if (TensRowsTakes(shared, gate_up, logits, router, x)) {
    return TensRowsProducts(ctx, shared, gate_up, logits, router, x);
  }
  if (HundredRowsTakes(shared, gate_up, logits, router, x)) {
    return HundredRowsProducts(ctx, shared, gate_up, logits, router, x);
  }
  if (FewRowsTakes(shared, x, gate_up) && FewRowsTakes(logits, x, router) &&
      gate_up.k == router.k) {
    return FewRowsProducts(ctx, shared, gate_up, logits, router, x);
  }
  if (Fp8RouterTakes(ctx, args)) return Fp8RouterProducts(ctx, args);
  if (Fp8MiddleRouterTakes(args)) {
    const RowSource rows{.x = x.data, .stride = x.stride[0], .rows = x.dim(0), .k = gate_up.k};
    return Fp8MiddleRouter(ctx, args, QuantiseRows(ctx, rows, gate_up));
  }
  if (gate_up.form == WeightForm::kFp8Block && HundredRowsRouterTakes(logits, router, x)) {
    HundredRowsRouter(ctx, logits, router, x);
    // Codes of the norm are older than that, which lets others start only once it has waited.
    const QuantisedRows codes = KnownRows(ctx, x.data, x.stride[0], x.dim(0), gate_up.k);
    if (codes.x != nullptr && Fp8MiddleTakes(shared, gate_up)) {
      return Fp8MiddleProduct(ctx, shared, codes, gate_up, true);
    }
    return Linear(ctx, shared, x, gate_up);
  }
  Linear(ctx, shared, x, gate_up);
  RouterLogits(ctx, logits, x, router);
}

}  // namespace

void MoeInputs(const OpContext& ctx, const MoeInputArgs& args) {
  Products(ctx, args);
  if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
}

}  // namespace baltoro::cuda
