#pragma once

// Variants that are being measured, chosen at run time; for the time of the measuring only.

#include <cstdlib>

namespace baltoro::cuda {

inline int DevSwitch(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// The products of few rows in steps of a model.
inline bool FewRowsInSteps() {
  static const bool on = DevSwitch("BT_FEW_ROWS", 1) != 0;
  return on;
}
inline bool JoinsNorms() {
  return DevSwitch("BT_JOIN_NORMS", 1) != 0;
}
// Whether kernels of few rows let the next one start before they wait: 1 the products of
// few_rows.h, 2 the others.
inline bool EarlyNext(int which) {
  static const int bits = DevSwitch("BT_EARLY_NEXT", 0);
  return (bits & which) != 0;
}

}  // namespace baltoro::cuda
