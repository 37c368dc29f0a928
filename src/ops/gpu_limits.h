#pragma once

#include <cstdint>

namespace baltoro {

// Of one step on a GPU: attention lists them in a multiprocessor's memory.
inline constexpr int32_t kGpuSequencesMax = 4096;

}  // namespace baltoro
