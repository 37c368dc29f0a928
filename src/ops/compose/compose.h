#pragma once

#include "ops/compose/small_ops.h"
#include "ops/ops.h"

namespace baltoro {

// Gives the table the plain composition of `small`, which must outlive it.
void ComposeOps(OpsTable& table, const SmallOps& small);

}  // namespace baltoro
