// The CUDA runtime over the emulated machine: memory, which is that of the host.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>

#include "cudart.h"
#include "machine.h"
#include "memory.h"

namespace emu {
namespace {

std::map<const void*, size_t>& Allocations() {
  static auto* allocations = new std::map<const void*, size_t>;
  return *allocations;
}

cudaError_t Allocate(void** to, size_t bytes) {
  if (bytes == 0) {
    *to = nullptr;
    return cudaSuccess;
  }
  constexpr size_t kMost = size_t{12} << 30;
  const size_t whole = (bytes + 4095) / 4096 * 4096 + 8192;
  void* base = bytes > kMost ? MAP_FAILED
                             : mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return Give(cudaErrorMemoryAllocation);
  char* data = static_cast<char*>(base) + 4096;
  if (bytes <= (size_t{64} << 20)) std::memset(data, 0xFF, bytes);
  const std::lock_guard lock(Machine());
  Allocations()[data] = whole;
  AddRange(data, bytes);
  *to = data;
  return cudaSuccess;
}

cudaError_t Release(void* data) {
  if (data == nullptr) return cudaSuccess;
  const std::lock_guard lock(Machine());
  const auto it = Allocations().find(data);
  if (it == Allocations().end()) return Give(cudaErrorInvalidValue);
  RemoveRange(data);
  munmap(static_cast<char*>(data) - 4096, it->second);
  Allocations().erase(it);
  return cudaSuccess;
}

// Many pages of our own are given back and come again as zeros when somebody touches them: scratch
// memory of gigabytes stays untouched.
void Set(void* to, int value, size_t bytes) {
  constexpr size_t kPage = 4096, kMany = size_t{1} << 20;
  char *const begin = static_cast<char*>(to), *const end = begin + bytes;
  if (value == 0 && bytes >= kMany) {
    const std::lock_guard lock(Machine());
    auto it = Allocations().upper_bound(begin);
    if (it != Allocations().begin()) {
      --it;
      const auto* const last = static_cast<const char*>(it->first) + it->second - 2 * kPage;
      if (end <= last) {
        const size_t head = -reinterpret_cast<uint64_t>(begin) % kPage;
        const size_t whole = (bytes - head) / kPage * kPage;
        madvise(begin + head, whole, MADV_DONTNEED);
        std::memset(begin, 0, head);
        std::memset(begin + head + whole, 0, bytes - head - whole);
        return;
      }
    }
  }
  std::memset(to, value, bytes);
}

}  // namespace

void HostWrites(const void* to, size_t bytes) {
  if (!TheOptions().notes) return;
  const std::lock_guard lock(Machine());
  HostWrote(to, bytes);
}

void HostWaits() {
  if (!TheOptions().notes) return;
  const std::lock_guard lock(Machine());
  HostWaited(current_device);
}

}  // namespace emu

using namespace emu;

extern "C" {

// ---- memory

cudaError_t cudaMalloc(void** to, size_t bytes) {
  return Allocate(to, bytes);
}
cudaError_t cudaMallocHost(void** to, size_t bytes) {
  return Allocate(to, bytes);
}
cudaError_t cudaHostAlloc(void** to, size_t bytes, unsigned) {
  return Allocate(to, bytes);
}
cudaError_t cudaMallocManaged(void** to, size_t bytes, unsigned) {
  return Allocate(to, bytes);
}
cudaError_t cudaMallocAsync(void** to, size_t bytes, cudaStream_t) {
  return Allocate(to, bytes);
}
cudaError_t cudaMallocFromPoolAsync(void** to, size_t bytes, cudaMemPool_t, cudaStream_t) {
  return Allocate(to, bytes);
}
cudaError_t cudaFree(void* data) {
  return Release(data);
}
cudaError_t cudaFreeHost(void* data) {
  return Release(data);
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t) {
  return Release(data);
}
cudaError_t cudaHostGetDevicePointer(void** to, void* host, unsigned) {
  *to = host;
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* data, size_t bytes, unsigned) {
  AddRange(data, bytes);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* data) {
  RemoveRange(data);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* available, size_t* total) {
  *available = size_t{8} << 30;
  *total = size_t{8} << 30;
  return cudaSuccess;
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps*) {
  *pool = reinterpret_cast<cudaMemPool_t>(8);
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t, const cudaMemAccessDesc*, size_t) {
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  std::memmove(to, from, bytes);
  HostWrites(to, bytes);
  return cudaSuccess;
}
// What a capture copies from the host is read when the graph runs, as on a device.
cudaError_t cudaMemcpyAsync(
    void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return Do(stream, {.type = cudaGraphNodeTypeMemcpy, .run = [=] {
                       std::memmove(to, from, bytes);
                       HostWrites(to, bytes);
                       return cudaSuccess;
                     }});
}
cudaError_t cudaMemcpy2DAsync(void* to,
                              size_t to_pitch,
                              const void* from,
                              size_t from_pitch,
                              size_t width,
                              size_t height,
                              cudaMemcpyKind,
                              cudaStream_t stream) {
  return Do(stream, {.type = cudaGraphNodeTypeMemcpy, .run = [=] {
                       for (size_t row = 0; row < height; ++row) {
                         char* const begin = static_cast<char*>(to) + row * to_pitch;
                         std::memmove(begin, static_cast<const char*>(from) + row * from_pitch,
                                      width);
                         HostWrites(begin, width);
                       }
                       return cudaSuccess;
                     }});
}
cudaError_t cudaMemcpy2D(void* to,
                         size_t to_pitch,
                         const void* from,
                         size_t from_pitch,
                         size_t width,
                         size_t height,
                         cudaMemcpyKind kind) {
  return cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, kind, nullptr);
}
cudaError_t cudaMemcpyPeerAsync(
    void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  Set(to, value, bytes);
  HostWrites(to, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return Do(stream, {.type = cudaGraphNodeTypeMemset, .run = [=] {
                       Set(to, value, bytes);
                       HostWrites(to, bytes);
                       return cudaSuccess;
                     }});
}
cudaError_t cudaMemcpyToSymbol(
    const void* symbol, const void* from, size_t bytes, size_t offset, cudaMemcpyKind) {
  const auto it = TheRegistry().variables.find(symbol);
  if (it == TheRegistry().variables.end()) return Give(cudaErrorInvalidSymbol);
  std::memcpy(static_cast<char*>(it->second.first) + offset, from, bytes);
  HostWrites(static_cast<char*>(it->second.first) + offset, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyFromSymbol(
    void* to, const void* symbol, size_t bytes, size_t offset, cudaMemcpyKind) {
  const auto it = TheRegistry().variables.find(symbol);
  if (it == TheRegistry().variables.end()) return Give(cudaErrorInvalidSymbol);
  std::memcpy(to, static_cast<char*>(it->second.first) + offset, bytes);
  return cudaSuccess;
}
cudaError_t cudaGetSymbolAddress(void** to, const void* symbol) {
  const auto it = TheRegistry().variables.find(symbol);
  if (it == TheRegistry().variables.end()) return Give(cudaErrorInvalidSymbol);
  *to = it->second.first;
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* to, const void* pointer) {
  Range range;
  *to = {};
  to->type = FindRange(reinterpret_cast<uint64_t>(pointer), range) ? cudaMemoryTypeDevice
                                                                   : cudaMemoryTypeUnregistered;
  to->devicePointer = to->hostPointer = const_cast<void*>(pointer);
  return cudaSuccess;
}
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t*, void*) {
  return Give(cudaErrorNotSupported);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned) {
  return Give(cudaErrorNotSupported);
}
cudaError_t cudaIpcCloseMemHandle(void*) {
  return cudaSuccess;
}
}
