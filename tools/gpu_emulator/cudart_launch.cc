// The CUDA runtime over the emulated machine: modules and launches. Kernels of several threads of
// the host (ranks) take turns whenever one gets no further.

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "cudart.h"
#include "machine.h"
#include "memory.h"

namespace emu {
namespace {

ptx::Source& SourceOf(size_t index) {
  Registry& r = TheRegistry();
  if (r.sources[index] == nullptr) {
    r.sources[index] = std::make_unique<ptx::Source>(std::move(r.texts[index]));
    for (const auto& [name, symbol] : r.sources[index]->module().symbols)
      if (symbol->data != nullptr) AddRange(symbol->data.get(), symbol->size);
  }
  return *r.sources[index];
}

const Program& ProgramOf(Function& f) {
  if (f.program == nullptr) {
    ptx::Source& source = SourceOf(f.source);
    auto kernel = source.ParseKernel(f.name);
    if (kernel == nullptr) Die("no kernel " + f.name + " in its module");
    f.program = Lower(std::move(kernel), source.module());
  }
  return *f.program;
}

cudaError_t LaunchKernel(Function& f, const LaunchShape& shape, void** args, cudaStream_t stream) {
  const Program* program;
  {
    const std::lock_guard lock(Machine());
    program = &ProgramOf(f);
  }
  const ptx::Kernel& k = *program->kernel;
  const uint64_t threads = uint64_t{shape.block[0]} * shape.block[1] * shape.block[2];
  LaunchShape s = shape;
  if (s.cluster[0] * s.cluster[1] * s.cluster[2] == 1) std::copy_n(k.cluster, 3, s.cluster);
  const auto refuse = [&](cudaError_t error, const char* why) {
    std::fprintf(stderr, "EMULATOR: launch of %s refused: %s\n", Demangled(f.name).c_str(), why);
    return Give(error);
  };
  if (threads == 0 || threads > static_cast<uint64_t>(k.max_threads))
    return refuse(cudaErrorInvalidValue, "threads of a block");
  for (int d = 0; d < 3; ++d)
    if (s.grid[d] == 0 || s.grid[d] % s.cluster[d] != 0)
      return refuse(cudaErrorInvalidConfiguration, "grid");
  if (s.grid[1] > 65535 || s.grid[2] > 65535)
    return refuse(cudaErrorInvalidConfiguration, "grid beyond 65535");
  if (s.cluster[0] * s.cluster[1] * s.cluster[2] > 8)
    return refuse(cudaErrorInvalidClusterSize, "cluster");
  if (shape.dynamic_shared >
      std::max<uint64_t>(f.most_dynamic, 49152 - std::min<uint64_t>(k.shared_bytes, 49152)))
    return refuse(cudaErrorInvalidValue,
                  "dynamic shared memory beyond what cudaFuncSetAttribute allowed");
  std::vector<char> parameters(k.parameter_bytes + 64);
  for (size_t n = 0; n < k.parameters.size(); ++n)
    std::memcpy(parameters.data() + k.parameters[n].offset, args[n], k.parameters[n].size);
  const int device = current_device;
  Do(stream, [program, s, parameters, device, threads] {
    auto* copy = static_cast<char*>(std::aligned_alloc(128, (parameters.size() + 127) / 128 * 128));
    std::memcpy(copy, parameters.data(), parameters.size());
    const auto begin = std::chrono::steady_clock::now();
    std::unique_lock lock(Machine());
    Execute(*program, s, copy, device, [&lock] {
      if (TheOptions().devices < 2) return;
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    });
    lock.unlock();
    std::free(copy);
    if (TheOptions().verbose > 0) {
      std::fprintf(
          stderr, "EMULATOR: %s grid %ux%ux%u of %d threads, %.1f ms\n",
          Demangled(program->kernel->name).c_str(), s.grid[0], s.grid[1], s.grid[2],
          static_cast<int>(threads),
          std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e3);
    }
  });
  return cudaSuccess;
}

Function* Find(const void* host) {
  Registry& r = TheRegistry();
  const auto it = r.functions.find(host);
  return it == r.functions.end() ? nullptr : it->second;
}

// The functions of the runtime take a kernel's address on the host or its handle.
Function* FindAny(const void* what) {
  Function* f = Find(what);
  if (f != nullptr) return f;
  for (const auto& [host, function] : TheRegistry().functions)
    if (function == what) return function;
  return nullptr;
}

thread_local struct {
  dim3 grid, block;
  size_t shared;
  cudaStream_t stream;
} pushed;

}  // namespace
}  // namespace emu

using namespace emu;

extern "C" {

// ---- modules

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const char* data;
    void* unused;
  };
  struct Entry {
    uint16_t kind, version;
    uint32_t header_bytes;
    uint64_t bytes;
  };
  Registry& r = TheRegistry();
  const char* at = static_cast<const Wrapper*>(wrapper)->data;
  uint16_t header_bytes;
  uint64_t bytes;
  std::memcpy(&header_bytes, at + 6, 2);
  std::memcpy(&bytes, at + 8, 8);
  const char* const end = at + header_bytes + bytes;
  at += header_bytes;
  std::string text;
  while (at < end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    const char* payload = at + entry.header_bytes;
    if (entry.kind == 1) text.assign(payload, strnlen(payload, entry.bytes));
    at = payload + entry.bytes;
  }
  r.texts.push_back(text);
  r.sources.emplace_back();
  return reinterpret_cast<void**>(r.texts.size());
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) {
  return 0;
}

void __cudaRegisterFunction(void** module,
                            const char* host,
                            char*,
                            const char* name,
                            int,
                            void*,
                            void*,
                            void*,
                            void*,
                            int*) {
  auto* f = new Function;
  f->name = name;
  f->source = reinterpret_cast<uint64_t>(module) - 1;
  TheRegistry().functions[host] = f;
}

void __cudaRegisterVar(
    void** module, char* host, char*, const char* name, int, size_t bytes, int, int) {
  const size_t index = reinterpret_cast<uint64_t>(module) - 1;
  const auto& symbols = SourceOf(index).module().symbols;
  const auto it = symbols.find(name);
  if (it != symbols.end() && it->second->data != nullptr)
    TheRegistry().variables[host] = {it->second->data.get(), bytes};
}

cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(Find(host));
  return *kernel == nullptr ? Give(cudaErrorInvalidDeviceFunction) : cudaSuccess;
}

unsigned __cudaPushCallConfiguration(dim3 grid,
                                     dim3 block,
                                     size_t shared,
                                     struct CUstream_st* stream) {
  pushed = {grid, block, shared, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = pushed.grid;
  *block = pushed.block;
  *shared = pushed.shared;
  *static_cast<cudaStream_t*>(stream) = pushed.stream;
  return cudaSuccess;
}

// ---- launches

static cudaError_t LaunchPlain(
    Function* f, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  LaunchShape shape;
  shape.grid[0] = grid.x, shape.grid[1] = grid.y, shape.grid[2] = grid.z;
  shape.block[0] = block.x, shape.block[1] = block.y, shape.block[2] = block.z;
  shape.dynamic_shared = shared;
  return LaunchKernel(*f, shape, args, stream);
}
cudaError_t __cudaLaunchKernel(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return LaunchPlain(reinterpret_cast<Function*>(kernel), grid, block, args, shared, stream);
}
cudaError_t __cudaLaunchKernel_ptsz(
    cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernel(
    const void* host, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return LaunchPlain(FindAny(host), grid, block, args, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(
    const void* host, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return LaunchPlain(FindAny(host), grid, block, args, shared, stream);
}

static LaunchShape ShapeOf(const cudaLaunchConfig_t* config) {
  LaunchShape shape;
  shape.grid[0] = config->gridDim.x, shape.grid[1] = config->gridDim.y,
  shape.grid[2] = config->gridDim.z;
  shape.block[0] = config->blockDim.x, shape.block[1] = config->blockDim.y,
  shape.block[2] = config->blockDim.z;
  shape.dynamic_shared = config->dynamicSmemBytes;
  for (unsigned n = 0; n < config->numAttrs; ++n) {
    if (config->attrs[n].id != cudaLaunchAttributeClusterDimension) continue;
    shape.cluster[0] = config->attrs[n].val.clusterDim.x;
    shape.cluster[1] = config->attrs[n].val.clusterDim.y;
    shape.cluster[2] = config->attrs[n].val.clusterDim.z;
  }
  return shape;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** args) {
  Function* f = FindAny(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  return LaunchKernel(*f, ShapeOf(config), args, config->stream);
}

cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  Function* f = FindAny(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    const std::lock_guard lock(Machine());
    if (value < 0 || static_cast<uint64_t>(value) + ProgramOf(*f).kernel->shared_bytes > 232448)
      return Give(cudaErrorInvalidValue);
    f->most_dynamic = static_cast<uint64_t>(value);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void* host) {
  Function* f = FindAny(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  const std::lock_guard lock(Machine());
  const Program& program = ProgramOf(*f);
  *to = {};
  to->sharedSizeBytes = program.kernel->shared_bytes;
  to->localSizeBytes = program.kernel->local_bytes;
  to->maxThreadsPerBlock = program.kernel->max_threads;
  to->numRegs = 128;
  to->maxDynamicSharedSizeBytes = static_cast<int>(f->most_dynamic);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* host, int threads, size_t shared, unsigned) {
  Function* f = FindAny(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  const std::lock_guard lock(Machine());
  *blocks = BlocksPerMultiprocessor(ProgramOf(*f), threads, shared);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks,
                                                          const void* host,
                                                          int threads,
                                                          size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, host, threads, shared, 0);
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters,
                                           const void* host,
                                           const cudaLaunchConfig_t* config) {
  const LaunchShape s = ShapeOf(config);
  int blocks = 0;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, host, static_cast<int>(s.block[0] * s.block[1] * s.block[2]), s.dynamic_shared);
  *clusters = blocks * TheOptions().multiprocessors /
              static_cast<int>(s.cluster[0] * s.cluster[1] * s.cluster[2]);
  return error;
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size,
                                                 const void*,
                                                 const cudaLaunchConfig_t*) {
  *size = 8;
  return cudaSuccess;
}
}
