#pragma once

// What of a kernel's launch a plan says beside the kernel.

#include <cstdint>

namespace baltoro::cuda {

struct LaunchShape {
  int32_t x = 0, y = 1;  // blocks
  int32_t threads = 0;
  int32_t shared = 0;  // dynamic, bytes
  int32_t cluster = 1;

  bool operator==(const LaunchShape&) const = default;
};

constexpr int64_t SharesOf(int64_t of, int64_t size) {
  return (of + size - 1) / size;
}

}  // namespace baltoro::cuda
