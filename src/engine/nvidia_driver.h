#pragma once

// Whether the NVIDIA driver of this machine is new enough for the CUDA module, which is built for
// CUDA 13.0. For `serve`, whose start it ends, and for `doctor`. Any thread.

#include <optional>
#include <string>

#include "base/status.h"

namespace baltoro {

inline constexpr int kDriverWanted = 580;  // the first with CUDA 13.0
inline constexpr int kCudaVersionWanted = 13000;

// The newest CUDA that the driver's library can run, as 12040 for 12.4; that of the
// forward-compatibility package where the loader finds it first. -1: there is no libcuda.so.1, or
// it does not say. Takes no card and none of its memory.
int DriverCudaVersion();

std::string CudaVersionText(int version);  // "12.4"

struct DriverFault {
  std::string what, remedy;
};

// Empty: new enough.
std::optional<DriverFault> JudgeCudaVersion(int version);

// kUnavailable for a driver that is too old; OK where none says its version.
Status CheckDriver();

}  // namespace baltoro
