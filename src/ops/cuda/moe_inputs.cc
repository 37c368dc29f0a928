#include "ops/cuda/cuda_fused.h"
#include "ops/cuda/few_rows.h"
#include "ops/cuda/fp8_few_rows.h"
#include "ops/cuda/fp8_middle.h"
#include "ops/cuda/hundred_rows.h"
#include "ops/cuda/tens_rows.h"

namespace baltoro::cuda {

void MoeInputs(const OpContext& ctx, const MoeInputArgs& args) {
  if (args.norm != nullptr) {
    // x is written, without codes.
    if (ctx.rounded != nullptr) ctx.rounded->of = nullptr;
    FewRowsProducts(ctx, args.shared, args.shared_gate_up, args.logits, args.router, args.x,
                    args.norm);
    if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
    return;
  }
  // First: of 9 to 16 rows each block of the other form reads all of them, 2 to 4 us more.
  if (TensRowsTakes(args.shared, args.shared_gate_up, args.logits, args.router, args.x)) {
    TensRowsProducts(ctx, args.shared, args.shared_gate_up, args.logits, args.router, args.x);
    if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
    return;
  }
  if (HundredRowsTakes(args.shared, args.shared_gate_up, args.logits, args.router, args.x)) {
    HundredRowsProducts(ctx, args.shared, args.shared_gate_up, args.logits, args.router, args.x);
    if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
    return;
  }
  if (FewRowsTakes(args.shared, args.x, args.shared_gate_up) &&
      FewRowsTakes(args.logits, args.x, args.router) && args.shared_gate_up.k == args.router.k) {
    FewRowsProducts(ctx, args.shared, args.shared_gate_up, args.logits, args.router, args.x);
    if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
    return;
  }
  if (Fp8RouterTakes(ctx, args)) {
    Fp8RouterProducts(ctx, args);
    if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
    return;
  }
  if (Fp8MiddleRouterTakes(args)) {
    const RowSource rows{.x = args.x.data,
                         .stride = args.x.stride[0],
                         .rows = args.x.dim(0),
                         .k = args.shared_gate_up.k};
    Fp8MiddleRouter(ctx, args, QuantiseRows(ctx, rows, args.shared_gate_up));
    if (args.chooses) Route(ctx, args.ids, args.weights, args.logits, args.bias, args.params);
    return;
  }
  Linear(ctx, args.shared, args.x, args.shared_gate_up);
  Router(ctx, args.ids, args.weights, args.logits, args.x, args.router, args.bias, args.params);
}

}  // namespace baltoro::cuda
