#include "device/cuda/device_buffer.h"

#include "device/cuda/cuda_status.h"

namespace baltoro {

Result<DeviceBuffer> DeviceBuffer::Create(size_t bytes, const std::string& what) {
  if (bytes == 0) return DeviceBuffer();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error != cudaSuccess) {
    cudaGetLastError();  // an allocation that failed is no error of the next launch
    return CudaStatus(error, "cudaMalloc of " + std::to_string(bytes) + " bytes for " + what);
  }
  return DeviceBuffer(data, bytes);
}

DeviceBuffer::~DeviceBuffer() {
  // At process end the driver may be gone already; there is nobody to tell.
  if (data_ != nullptr) static_cast<void>(cudaFree(data_));
}

}  // namespace baltoro
