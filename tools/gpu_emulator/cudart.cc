// The CUDA runtime over the emulated machine: devices, errors, tensor maps.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "cudart.h"
#include "machine.h"
#include "memory.h"
#include "tensor_map.h"

namespace emu {

const Options& TheOptions() {
  static const Options options = [] {
    const auto number = [](const char* name, int otherwise) {
      const char* text = std::getenv(name);
      return text == nullptr || *text == 0 ? otherwise : std::atoi(text);
    };
    Options o;
    o.check_memory = number("EMU_CHECK", 1) != 0;
    o.notes = o.check_memory && number("EMU_NOTES", 1) != 0;
    o.only_warn = number("EMU_NOTES", 1) == 2;
    o.check_a = number("EMU_CHECK_A", 0) != 0;
    o.strict = number("EMU_STRICT", 0) != 0;
    o.run = number("EMU_RUN", 1) != 0;
    o.late = number("EMU_LATE", 2);
    o.seed = static_cast<uint32_t>(number("EMU_SEED", 1));
    o.verbose = number("EMU_VERBOSE", 0);
    o.multiprocessors = number("EMU_SMS", 132);
    o.devices = number("EMU_DEVICES", 1);
    o.idle_passes = number("EMU_IDLE", 3000);
    return o;
  }();
  return options;
}

std::mutex& Machine() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

Registry& TheRegistry() {
  static auto* registry = new Registry;
  return *registry;
}

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

cudaError_t Give(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

namespace {

CUresult EncodeTiled(CUtensorMap* to,
                     CUtensorMapDataType type,
                     cuuint32_t rank,
                     void* base,
                     const cuuint64_t* sizes,
                     const cuuint64_t* strides,
                     const cuuint32_t* box,
                     const cuuint32_t* steps,
                     CUtensorMapInterleave interleave,
                     CUtensorMapSwizzle swizzle,
                     CUtensorMapL2promotion,
                     CUtensorMapFloatOOBfill fill) {
  TensorMap map = {};
  map.magic = kTensorMapMagic;
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      map.element_bytes = 1;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      map.element_bytes = 2;
      break;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      map.element_bytes = 8;
      break;
    default:
      map.element_bytes = 4;
      break;
  }
  const auto address = reinterpret_cast<uint64_t>(base);
  if (rank == 0 || rank > 5 || address % 16 != 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  map.rank = static_cast<uint8_t>(rank);
  map.base = address;
  map.nan_fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE:
      map.swizzle = 0;
      break;
    case CU_TENSOR_MAP_SWIZZLE_32B:
      map.swizzle = 1;
      break;
    case CU_TENSOR_MAP_SWIZZLE_64B:
      map.swizzle = 2;
      break;
    case CU_TENSOR_MAP_SWIZZLE_128B:
      map.swizzle = 3;
      break;
    default:
      return CUDA_ERROR_NOT_SUPPORTED;
  }
  for (cuuint32_t d = 0; d < rank; ++d) {
    if (sizes[d] == 0 || sizes[d] > (uint64_t{1} << 32) || box[d] == 0 || box[d] > 256 ||
        steps[d] == 0 || steps[d] > 8)
      return CUDA_ERROR_INVALID_VALUE;
    map.sizes[d] = static_cast<uint32_t>(std::min<uint64_t>(sizes[d], 0xFFFFFFFFu));
    map.box[d] = static_cast<uint16_t>(box[d]);
    map.steps[d] = static_cast<uint16_t>(steps[d]);
    if (d > 0) {
      if (strides[d - 1] % 16 != 0 || strides[d - 1] >= (uint64_t{1} << 40))
        return CUDA_ERROR_INVALID_VALUE;
      map.strides[d - 1] = strides[d - 1];
    }
  }
  const uint32_t row = box[0] * map.element_bytes;
  if (row % 16 != 0 || steps[0] != 1) return CUDA_ERROR_INVALID_VALUE;
  if (map.swizzle != 0 && row > (16u << map.swizzle)) return CUDA_ERROR_INVALID_VALUE;
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

// ---- devices

cudaError_t cudaGetDeviceCount(int* count) {
  *count = TheOptions().devices;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= TheOptions().devices) return Give(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  if (device < 0 || device >= TheOptions().devices) return Give(cudaErrorInvalidDevice);
  std::memset(to, 0, sizeof *to);
  std::strcpy(to->name, "emulated sm_90");
  to->major = 9;
  to->totalGlobalMem = size_t{8} << 30;
  to->multiProcessorCount = TheOptions().multiprocessors;
  to->l2CacheSize = 50 << 20;
  to->sharedMemPerBlock = 49152;
  to->sharedMemPerBlockOptin = 232448;
  to->sharedMemPerMultiprocessor = 233472;
  to->maxThreadsPerBlock = 1024;
  to->maxThreadsPerMultiProcessor = 2048;
  to->warpSize = 32;
  to->regsPerBlock = to->regsPerMultiprocessor = 65536;
  to->memoryBusWidth = 5120;
  to->cooperativeLaunch = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = TheOptions().multiprocessors;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 232448;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrL2CacheSize:
      *value = 50 << 20;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    default:
      *value = attribute == cudaDevAttrComputeCapabilityMinor ? 0 : 1;
      break;
  }
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* to, int length, int device) {
  std::snprintf(to, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return cudaSuccess;
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
  HostWaits();
  return cudaSuccess;
}
cudaError_t cudaDeviceReset(void) {
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

// ---- errors

cudaError_t cudaGetLastError(void) {
  const cudaError_t error = last_error;
  last_error = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError(void) {
  return last_error;
}
const char* cudaGetErrorString(cudaError_t error) {
  thread_local char text[64];
  std::snprintf(text, sizeof text, "error %d of the emulated runtime", static_cast<int>(error));
  return error == cudaSuccess ? "no error" : text;
}
const char* cudaGetErrorName(cudaError_t error) {
  return cudaGetErrorString(error);
}

// ---- the driver's functions

cudaError_t cudaGetDriverEntryPointByVersion(const char* name,
                                             void** to,
                                             unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  const bool known = std::strcmp(name, "cuTensorMapEncodeTiled") == 0;
  *to = known ? reinterpret_cast<void*>(EncodeTiled) : nullptr;
  if (found != nullptr)
    *found = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
cudaError_t cudaGetDriverEntryPoint(const char* name,
                                    void** to,
                                    unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* found) {
  return cudaGetDriverEntryPointByVersion(name, to, 12000, flags, found);
}

}  // extern "C"
