#include "device/cuda/cuda_memory.h"

#include <cuda_runtime_api.h>

#include <cstring>
#include <vector>

#include "device/buffer.h"
#include "device/cuda/card_share.h"
#include "device/cuda/cuda_status.h"
#include "device/host_access.h"

namespace baltoro {
namespace {

Status Failed(cudaError_t error, const char* call, size_t bytes, const std::string& what) {
  cudaGetLastError();  // an allocation that failed is no error of the next launch
  return CudaStatus(error,
                    std::string(call) + " of " + std::to_string(bytes) + " bytes for " + what);
}

class DeviceMemory final : public Memory {
 public:
  explicit DeviceMemory(int device) : device_(device) {}

  DeviceKind kind() const override { return DeviceKind::kCuda; }
  Result<void*> Allocate(size_t bytes, const std::string& what) const override {
    void* data = nullptr;
    BT_RETURN_IF_ERROR(UseDevice(device_));
    const cudaError_t error = cudaMalloc(&data, bytes);
    if (error != cudaSuccess) return Failed(error, "cudaMalloc", bytes, what);
    BT_RETURN_IF_ERROR(Clear(data, bytes));
    return data;
  }
  // At process end the driver may be gone already; there is nobody to tell.
  void Free(void* data, size_t) const override { static_cast<void>(cudaFree(data)); }
  Status CopyIn(void* to, const void* host, size_t bytes) const override {
    BT_RETURN_IF_ERROR(WaitForAll());
    return CopyInBeside(to, host, bytes);
  }
  Status CopyInBeside(void* to, const void* host, size_t bytes) const override {
    BT_RETURN_IF_ERROR(UseDevice(device_));
    BT_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(to, host, bytes, cudaMemcpyHostToDevice, StreamForCopies()));
    BT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(StreamForCopies()));
    return {};
  }
  Status CopyOut(void* host, const void* from, size_t bytes) const override {
    BT_RETURN_IF_ERROR(WaitForAll());
    BT_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(host, from, bytes, cudaMemcpyDeviceToHost, StreamForCopies()));
    BT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(StreamForCopies()));
    return {};
  }
  Status Copy(void* to, const void* from, size_t bytes) const override {
    BT_RETURN_IF_ERROR(WaitForAll());
    BT_CUDA_RETURN_IF_ERROR(
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, StreamForCopies()));
    BT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(StreamForCopies()));
    return {};
  }
  Status Clear(void* data, size_t bytes) const override {
    BT_RETURN_IF_ERROR(WaitForAll());
    BT_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(data, 0, bytes, StreamForCopies()));
    BT_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(StreamForCopies()));
    return {};
  }
  size_t Available() const override {
    size_t available = 0, total = 0;
    if (!UseDevice(device_).ok()) return 0;
    if (cudaMemGetInfo(&available, &total) != cudaSuccess) return 0;
    return available;
  }

 private:
  // Of the device, or the share of it, which is the thread's from then on.
  Status WaitForAll() const {
    BT_RETURN_IF_ERROR(UseDevice(device_));
    return WaitForDevice();
  }

  const int device_;
};

class PinnedPages final : public HostAccess {
 public:
  Result<void*> Allocate(size_t bytes, const std::string& what) const override {
    void* data = nullptr;
    const cudaError_t error = cudaMallocHost(&data, bytes);
    if (error != cudaSuccess) return Failed(error, "cudaMallocHost", bytes, what);
    std::memset(data, 0, bytes);
    return data;
  }
  void Free(void* data, size_t) const override { static_cast<void>(cudaFreeHost(data)); }
  size_t Available() const override { return AvailableHostMemory(); }
};

}  // namespace

const Memory& CudaMemory(int device) {
  static const std::vector<DeviceMemory> memories = [] {
    std::vector<DeviceMemory> made;
    for (int i = 0; i < kCudaDevicesMax; ++i) made.emplace_back(i);
    return made;
  }();
  return memories[static_cast<size_t>(device)];
}

const Memory& PinnedMemory() {
  static const PinnedPages memory;
  return memory;
}

}  // namespace baltoro
