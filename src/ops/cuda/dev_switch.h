#pragma once

// Variants that are being measured, chosen at run time; for the time of the measuring only.

#include <cstdlib>

namespace baltoro::cuda {

inline int DevSwitch(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

}  // namespace baltoro::cuda
