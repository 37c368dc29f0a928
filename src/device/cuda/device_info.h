#pragma once

// What kernels and plans ask of the card.

#include <cstddef>
#include <string>

#include "base/status.h"

namespace baltoro {

struct DeviceInfo {
  std::string name;
  int multiprocessors = 0;
  size_t l2_bytes = 0;
  size_t shared_bytes_per_block = 0;  // the most that a kernel may ask for
  size_t memory_bytes = 0;
};

// GPUs that kernels built for sm_90a run on; 0 without a driver.
int UsableDeviceCount();
// kUnavailable if the device is none of those. Takes no memory of it.
Result<DeviceInfo> DescribeDevice(int device);
Result<DeviceInfo> CurrentDeviceInfo();

}  // namespace baltoro
