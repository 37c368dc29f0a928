#pragma once

// What is the same for every table whose tensors lie in host memory: copies of rows, and nothing
// where a GPU would have to be fed, planned for or waited for.

#include "ops/ops.h"

namespace baltoro {

void SetHostMemoryOps(OpsTable& table);

}  // namespace baltoro
