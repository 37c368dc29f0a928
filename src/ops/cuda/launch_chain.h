#pragma once

// Launches of a step's chain: each kernel may be placed while the one before it ends.

#include <cuda_runtime_api.h>

#include <cstdlib>

namespace baltoro::cuda {

// A multiprocessor changes the split of its memory into L1 and shared memory only when it is empty,
// so that a kernel that wants another split than the one before it could not be placed beside it.
inline int ChainCarveout() {
  static const int percent = [] {
    const char* const text = std::getenv("BT_CARVE");
    return text == nullptr ? -1 : std::atoi(text);
  }();
  return percent;
}

// Fills `attributes` and returns how many there are.
struct ChainAttributes {
  cudaLaunchAttribute list[3] = {};
  unsigned count = 0;

  explicit ChainAttributes(unsigned cluster = 0) {
    list[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    list[count++].val.programmaticStreamSerializationAllowed = 1;
    if (cluster > 0) {
      list[count].id = cudaLaunchAttributeClusterDimension;
      list[count++].val.clusterDim = {cluster, 1, 1};
    }
    if (ChainCarveout() >= 0) {
      list[count].id = cudaLaunchAttributePreferredSharedMemoryCarveout;
      list[count++].val.sharedMemCarveout = static_cast<unsigned>(ChainCarveout());
    }
  }
};

}  // namespace baltoro::cuda
