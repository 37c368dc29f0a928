#pragma once

// Ceilings of this card, and timing by graph replay.

#include <cstddef>
#include <functional>

#include "base/status.h"
#include "device/cuda/stream.h"

namespace baltoro {

// Bytes a second of a kernel that only reads `bytes` (many times the L2) with 16-byte loads: the
// best of a few launch shapes, each the median of several runs.
Result<double> ReadBandwidth(const void* data, size_t bytes, const Stream& stream);

// Median seconds of one of the `copies` that `record` queues, captured once and replayed `runs`
// times after a warm-up.
Result<double> MedianSeconds(const Stream& stream,
                             int copies,
                             int runs,
                             const std::function<Status()>& record);

}  // namespace baltoro
