#include "ops/compose/compose.h"

#include <memory>

#include "ops/compose/composed_state.h"

namespace baltoro {

void ComposeOps(OpsTable& table, const SmallOps& small) {
  table.act = small.act;
  table.small = &small;
  table.begin = [&small](const OpContext& context, Arena& arena, const StepShape& shape) {
    return std::make_unique<ComposedState>(small, context, arena, shape);
  };
}

}  // namespace baltoro
