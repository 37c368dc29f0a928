#include "device/cuda/device_info.h"

#include "device/cuda/cuda_status.h"

namespace baltoro {
namespace {

bool Usable(const cudaDeviceProp& properties) {
  return properties.major == 9 && properties.minor == 0;
}

}  // namespace

int UsableDeviceCount() {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  int usable = 0;
  for (int device = 0; device < devices; ++device) {
    cudaDeviceProp properties;
    usable += cudaGetDeviceProperties(&properties, device) == cudaSuccess && Usable(properties);
  }
  return usable;
}

Result<DeviceInfo> CurrentDeviceInfo() {
  int device = 0;
  BT_CUDA_RETURN_IF_ERROR(cudaGetDevice(&device));
  return DescribeDevice(device);
}

Result<DeviceInfo> DescribeDevice(int device) {
  cudaDeviceProp properties;
  BT_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device));
  if (!Usable(properties)) {
    return Status(Code::kUnavailable,
                  std::string("the GPU is a ") + properties.name + " of compute capability " +
                      std::to_string(properties.major) + "." + std::to_string(properties.minor) +
                      "; the kernels are for 9.0 (H100, H200)");
  }
  DeviceInfo info;
  info.name = properties.name;
  info.multiprocessors = properties.multiProcessorCount;
  info.l2_bytes = static_cast<size_t>(properties.l2CacheSize);
  info.shared_bytes_per_block = properties.sharedMemPerBlockOptin;
  info.memory_bytes = properties.totalGlobalMem;
  return info;
}

}  // namespace baltoro
