#pragma once

#include <cuda_runtime_api.h>

#include "ops/cuda/launch/order.h"

namespace baltoro::cuda {

// Where a launch is queued, and what it may take from those ahead of it.
struct LaunchStream {
  cudaStream_t stream = nullptr;
  LaunchOrder* order = nullptr;  // of that stream; not null where kernels are launched

  operator cudaStream_t() const { return stream; }  // NOLINT: for the runtime's own calls
};

}  // namespace baltoro::cuda
