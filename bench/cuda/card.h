#pragma once

// What benchmarks of kernels share: data, ceilings of this card, timing by graph replay.

#include <cstddef>
#include <cstdint>
#include <functional>

#include "base/status.h"
#include "device/cuda/stream.h"

namespace baltoro::bench {

// Pseudo-random bf16 values, uniform in (-1, 1).
Status FillRandomBf16(void* data, size_t count, uint32_t seed, const Stream& stream);
// Pseudo-random e4m3 codes without NaN.
Status FillRandomE4m3(void* data, size_t count, uint32_t seed, const Stream& stream);

// Bytes a second of a kernel that only reads `bytes` (many times the L2) with 16-byte loads: the
// best of a few launch shapes, each the median of several runs.
Result<double> ReadBandwidth(const void* data, size_t bytes, const Stream& stream);

// Median seconds of one of the `copies` that `record` queues, captured once and replayed `runs`
// times after a warm-up.
Result<double> MedianSeconds(const Stream& stream,
                             int copies,
                             int runs,
                             const std::function<Status()>& record);

}  // namespace baltoro::bench
