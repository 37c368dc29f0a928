#pragma once

#include <cstdint>

namespace baltoro {

// Of one step on a GPU: attention lists them in a multiprocessor's memory.
inline constexpr int32_t kGpuSequencesMax = 4096;
// Most likely tokens that are told of a row, as its threads sort them.
inline constexpr int32_t kGpuLogprobsMax = 1024;

}  // namespace baltoro
