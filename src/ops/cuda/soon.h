#pragma once

// Memory that launches to come will read (OpContext::soon), as kernels are told of it: they have
// the L2 fetch it while the card's memory would rest. A hint: nothing depends on it.

#include <cstdint>

#include "ops/ops.h"

namespace baltoro::cuda {

inline constexpr int kSoonMax = 4;

struct SoonRead {
  const char* data[kSoonMax];  // 16-byte aligned
  int64_t bytes[kSoonMax];     // multiples of 16; 0: none
};

SoonRead SoonOf(const OpContext& ctx);

}  // namespace baltoro::cuda
