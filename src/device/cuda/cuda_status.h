#pragma once

// CUDA's errors as Status. Out of memory is kResourceExhausted, no usable device or driver
// kUnavailable, everything else kInternal.

#include <cuda_runtime_api.h>

#include "base/status.h"

namespace baltoro {

// `what` says what was tried: "cudaMalloc of 12 bytes for KV cache".
Status CudaStatus(cudaError_t error, const std::string& what);

// The error of the launch just made, if any; clears it.
Status CudaLaunchStatus(const char* kernel);

}  // namespace baltoro

#define BT_CUDA_RETURN_IF_ERROR(expr)                                                     \
  do {                                                                                    \
    const cudaError_t bt_cuda_error = (expr);                                             \
    if (bt_cuda_error != cudaSuccess) return ::baltoro::CudaStatus(bt_cuda_error, #expr); \
  } while (false)
