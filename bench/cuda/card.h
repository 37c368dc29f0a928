#pragma once

// What benchmarks of kernels share: data, and measure.h.

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "device/cuda/measure.h"
#include "device/cuda/stream.h"

namespace baltoro::bench {

// Pseudo-random bf16 values, uniform in (-1, 1).
Status FillRandomBf16(void* data, size_t count, uint32_t seed, const Stream& stream);
// Uniform in (-1, 1); normal; normal / 10, as FlashMLA's own test has it; zeros.
enum class BfloatData { kUniform, kNormal, kSmall, kZeros };
Status FillBf16(void* data, size_t count, uint32_t seed, BfloatData kind, const Stream& stream);
// Pseudo-random e4m3 codes without NaN.
Status FillRandomE4m3(void* data, size_t count, uint32_t seed, const Stream& stream);

using baltoro::MedianSeconds;
using baltoro::ReadBandwidth;

}  // namespace baltoro::bench
