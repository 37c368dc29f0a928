#include "device/cuda/cuda_status.h"

namespace baltoro {

Status CudaStatus(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return Status();
  const std::string message =
      what + ": " + cudaGetErrorName(error) + ", " + cudaGetErrorString(error);
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Status(Code::kResourceExhausted, message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorSystemDriverMismatch:
      return Status(Code::kUnavailable, message);
    default:
      return Status(Code::kInternal, message);
  }
}

Status CudaLaunchStatus(const char* kernel) {
  return CudaStatus(cudaGetLastError(), kernel);
}

}  // namespace baltoro
