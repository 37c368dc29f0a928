#pragma once

#include <cstdint>

#include "ops/ops.h"

namespace baltoro::cpu {

// PackRows (cpu_ops.h) of a form that is not plain, into the panels of coded_panel.h. Any thread;
// ranges that begin at multiples of 32 share no byte.
void PackCodes(void* dst, int64_t n, int64_t row_begin, const StoredRows& src);

}  // namespace baltoro::cpu
