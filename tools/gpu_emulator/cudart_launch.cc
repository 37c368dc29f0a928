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
#include "notes.h"

namespace emu {

std::atomic<uint64_t> launches = 0;

namespace {

constexpr uint64_t kSharedMost = 232448;  // of a block, static and dynamic

ptx::Source& SourceOf(size_t index) {
  Registry& r = TheRegistry();
  if (r.sources[index] == nullptr) {
    r.sources[index] = std::make_unique<ptx::Source>(std::move(r.texts[index]));
    for (const auto& [name, symbol] : r.sources[index]->module().symbols)
      if (symbol->data != nullptr) AddRange(symbol->data.get(), symbol->size);
  }
  return *r.sources[index];
}

// What a kernel promises, without its instructions.
const ptx::Kernel& HeadOf(Function& f) {
  if (f.head == nullptr) f.head = SourceOf(f.source).ParseHead(f.name);
  if (f.head == nullptr) Die("no kernel " + f.name + " in its module");
  return *f.head;
}

const ptx::Kernel& KernelOf(Function& f) {
  if (f.program != nullptr) return *f.program->kernel;
  if (f.parsed == nullptr) f.parsed = SourceOf(f.source).ParseKernel(f.name);
  if (f.parsed == nullptr) Die("no kernel " + f.name + " in its module");
  return *f.parsed;
}

const Program& ProgramOf(Function& f) {
  if (f.program == nullptr) {
    KernelOf(f);
    f.program = Lower(std::move(f.parsed), SourceOf(f.source).module());
  }
  return *f.program;
}

cudaError_t Refuse(const Function& f, cudaError_t error, const char* why) {
  std::fprintf(stderr, "EMULATOR: launch of %s refused: %s\n", Demangled(f.name).c_str(), why);
  return Give(error);
}

// What is known before the kernel's instructions are.
cudaError_t Check(const Function& f, const ptx::Kernel& head, const LaunchShape& s) {
  const uint64_t threads = uint64_t{s.block[0]} * s.block[1] * s.block[2];
  if (threads == 0 || threads > static_cast<uint64_t>(head.max_threads))
    return Refuse(f, cudaErrorInvalidValue, "threads of a block");
  for (int d = 0; d < 3; ++d)
    if (s.grid[d] == 0 || s.grid[d] % s.cluster[d] != 0)
      return Refuse(f, cudaErrorInvalidConfiguration, "grid");
  if (s.grid[1] > 65535 || s.grid[2] > 65535)
    return Refuse(f, cudaErrorInvalidConfiguration, "grid beyond 65535");
  if (s.cluster[0] * s.cluster[1] * s.cluster[2] > 8)
    return Refuse(f, cudaErrorInvalidClusterSize, "cluster");
  if (s.dynamic_shared > std::max<uint64_t>(f.most_dynamic, 49152))
    return Refuse(f, cudaErrorInvalidValue,
                  "dynamic shared memory beyond what cudaFuncSetAttribute allowed");
  return cudaSuccess;
}

cudaError_t Run(Function& f,
                const LaunchShape& s,
                const std::vector<char>& parameters,
                int device,
                bool overlaps,
                const Note* note) {
  if (!TheOptions().run) return cudaSuccess;
  ++launches;
  std::unique_lock lock(Machine());
  const Program& program = ProgramOf(f);
  const uint64_t own = program.kernel->shared_bytes;
  if (s.dynamic_shared + own > std::max<uint64_t>(f.most_dynamic + own, 49152) ||
      s.dynamic_shared + own > kSharedMost)
    return Refuse(f, cudaErrorInvalidValue, "shared memory, with the static one");
  auto* copy = static_cast<char*>(std::aligned_alloc(128, (parameters.size() + 127) / 128 * 128));
  std::memcpy(copy, parameters.data(), parameters.size());
  const auto begin = std::chrono::steady_clock::now();
  // A launch that does not overlap starts when all ahead of it have ended.
  if (!overlaps) HostWaited(device);
  const bool let_next_start = Execute(program, s, copy, device, note, [&lock] {
    if (TheOptions().devices < 2) return;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
  });
  if (!overlaps && !let_next_start) HostWaited(device);
  lock.unlock();
  std::free(copy);
  if (TheOptions().verbose > 0) {
    std::fprintf(
        stderr, "EMULATOR: %s grid %ux%ux%u of %d threads, %.1f ms\n", Demangled(f.name).c_str(),
        s.grid[0], s.grid[1], s.grid[2], static_cast<int>(s.block[0] * s.block[1] * s.block[2]),
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e3);
  }
  return cudaSuccess;
}

cudaError_t LaunchKernel(Function& f, Task task, void** args, cudaStream_t stream) {
  LaunchShape& s = task.shape;
  std::vector<char> parameters;
  std::shared_ptr<const Note> note = TakeNote();
  {
    const std::lock_guard lock(Machine());
    const ptx::Kernel& head = HeadOf(f);
    // A size that is written into a kernel counts as given, as it does on a device.
    if (s.cluster[0] * s.cluster[1] * s.cluster[2] == 1) std::copy_n(head.cluster, 3, s.cluster);
    task.cluster_given |= head.cluster[0] * head.cluster[1] * head.cluster[2] > 1;
    const cudaError_t error = Check(f, head, s);
    if (error != cudaSuccess) return error;
    parameters.resize(head.parameter_bytes + 64);
    for (size_t n = 0; n < head.parameters.size(); ++n)
      std::memcpy(parameters.data() + head.parameters[n].offset, args[n], head.parameters[n].size);
  }
  task.function = &f;
  task.run = [&f, s, parameters = std::move(parameters), device = current_device,
              overlaps = task.overlaps, note = std::move(note)] {
    return Run(f, s, parameters, device, overlaps, note.get());
  };
  return Do(stream, std::move(task));
}

// The functions of the runtime take a kernel's address on the host or its handle.
Function* Find(const void* what) {
  const auto& functions = TheRegistry().functions;
  const auto it = functions.find(what);
  return it == functions.end() ? nullptr : it->second;
}

// Clusters that run at once where so many blocks share a multiprocessor. A cluster stays in one of
// the card's groups of multiprocessors, which differ in size and are not documented: this is what
// cudaOccupancyMaxActiveClusters said on an H200 (the launch table's "card, ...").
int ClustersOf(int cluster, int blocks) {
  constexpr int kMultiprocessors = 132, kBlocks = 3, kCluster = 8;
  constexpr int kOfH200[kBlocks][kCluster] = {
      {132, 66, 39, 30, 22, 17, 15, 15},
      {264, 132, 79, 62, 47, 39, 32, 30},
      {396, 198, 124, 92, 69, 62, 47, 45},
  };
  const bool known = TheOptions().multiprocessors == kMultiprocessors && blocks >= 1 &&
                     blocks <= kBlocks && cluster >= 1 && cluster <= kCluster;
  return known ? kOfH200[blocks - 1][cluster - 1]
               : blocks * TheOptions().multiprocessors / std::max(cluster, 1);
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
  TheRegistry().functions[host] = TheRegistry().functions[f] = f;
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
  Task task;
  LaunchShape& shape = task.shape;
  shape.grid[0] = grid.x, shape.grid[1] = grid.y, shape.grid[2] = grid.z;
  shape.block[0] = block.x, shape.block[1] = block.y, shape.block[2] = block.z;
  shape.dynamic_shared = shared;
  return LaunchKernel(*f, std::move(task), args, stream);
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
  return LaunchPlain(Find(host), grid, block, args, shared, stream);
}
cudaError_t cudaLaunchCooperativeKernel(
    const void* host, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return LaunchPlain(Find(host), grid, block, args, shared, stream);
}

static Task TaskOf(const cudaLaunchConfig_t* config) {
  Task task;
  LaunchShape& shape = task.shape;
  shape.grid[0] = config->gridDim.x, shape.grid[1] = config->gridDim.y,
  shape.grid[2] = config->gridDim.z;
  shape.block[0] = config->blockDim.x, shape.block[1] = config->blockDim.y,
  shape.block[2] = config->blockDim.z;
  shape.dynamic_shared = config->dynamicSmemBytes;
  for (unsigned n = 0; n < config->numAttrs; ++n) {
    const cudaLaunchAttribute& attribute = config->attrs[n];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization)
      task.overlaps = attribute.val.programmaticStreamSerializationAllowed != 0;
    if (attribute.id != cudaLaunchAttributeClusterDimension) continue;
    task.cluster_given = true;
    shape.cluster[0] = attribute.val.clusterDim.x;
    shape.cluster[1] = attribute.val.clusterDim.y;
    shape.cluster[2] = attribute.val.clusterDim.z;
  }
  return task;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** args) {
  Function* f = Find(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  return LaunchKernel(*f, TaskOf(config), args, config->stream);
}

cudaError_t cudaFuncGetName(const char** name, const void* host) {
  Function* f = Find(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  *name = f->name.c_str();
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
  Function* f = Find(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
    // With the static one it is held against the limit when the kernel runs.
    if (value < 0 || static_cast<uint64_t>(value) > kSharedMost) return Give(cudaErrorInvalidValue);
    const std::lock_guard lock(Machine());
    f->most_dynamic = static_cast<uint64_t>(value);
  }
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void* host) {
  Function* f = Find(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  const std::lock_guard lock(Machine());
  const ptx::Kernel& kernel = KernelOf(*f);
  *to = {};
  to->sharedSizeBytes = kernel.shared_bytes;
  to->localSizeBytes = kernel.local_bytes;
  to->maxThreadsPerBlock = kernel.max_threads;
  to->numRegs = 128;
  to->maxDynamicSharedSizeBytes = static_cast<int>(f->most_dynamic);
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* host, int threads, size_t shared, unsigned) {
  Function* f = Find(host);
  if (f == nullptr) return Give(cudaErrorInvalidDeviceFunction);
  const std::lock_guard lock(Machine());
  *blocks = BlocksPerMultiprocessor(KernelOf(*f), threads, shared);
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
  const LaunchShape s = TaskOf(config).shape;
  int blocks = 0;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, host, static_cast<int>(s.block[0] * s.block[1] * s.block[2]), s.dynamic_shared);
  *clusters = ClustersOf(static_cast<int>(s.cluster[0] * s.cluster[1] * s.cluster[2]), blocks);
  return error;
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size,
                                                 const void*,
                                                 const cudaLaunchConfig_t*) {
  *size = 8;
  return cudaSuccess;
}
}
