#pragma once

// For tests of several ranks where there is one GPU.

#include <cstdlib>

namespace baltoro::test {

// Device numbers 0 to 3 mean shares of the GPU where there is one alone (device/cuda/card_share.h).
// Before anything else of CUDA. Kernels are loaded at once: one that is loaded when it is first
// launched may wait for the card, on which another already waits for it.
inline bool UseSharesOfOneCard() {
  setenv("BALTORO_TEST_CARD_SHARES", "4", 0);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  return true;
}

}  // namespace baltoro::test
