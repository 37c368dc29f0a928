#pragma once

// What is the same for every backend whose tensors lie in host memory: copies of rows, the highest
// of a row, and nothing where a GPU would have to be fed, planned for or waited for.

#include "ops/compose/small_ops.h"
#include "ops/ops.h"

namespace baltoro {

void SetHostMemoryOps(OpsTable& table);
void SetHostMemoryOps(SmallOps& small);

}  // namespace baltoro
