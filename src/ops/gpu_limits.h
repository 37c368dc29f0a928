#pragma once

#include <cstdint>

namespace baltoro {

// Of one step on a GPU: attention lists them in a multiprocessor's memory.
inline constexpr int32_t kGpuSequencesMax = 4096;
// Of a model: sizes that attention is written for, and what routing has room for.
inline constexpr int32_t kGpuLatent = 512, kGpuNope = 128, kGpuRope = 64, kGpuValue = 128;
// Widths of heads with keys of their own.
constexpr bool GpuTakesHeadWidth(int64_t width) {
  return width == 64 || width == 128;
}
inline constexpr int32_t kGpuExpertsMax = 1024, kGpuChosenMax = 32;
// Most likely tokens that are told of a row, as its threads sort them.
inline constexpr int32_t kGpuLogprobsMax = 1024;

}  // namespace baltoro
