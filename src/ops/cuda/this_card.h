#pragma once

// The card that choices are made for: the device that is current in this thread.

#include <cuda_runtime_api.h>

#include "ops/cuda/choose/card.h"
#include "ops/cuda/cuda_ops.h"

namespace baltoro::cuda {

inline Card ThisCard() {
  Card card;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "cudaGetDevice");
  CheckCuda(cudaDeviceGetAttribute(&card.multiprocessors, cudaDevAttrMultiProcessorCount, device),
            "cudaDeviceGetAttribute");
  return card;
}

}  // namespace baltoro::cuda
