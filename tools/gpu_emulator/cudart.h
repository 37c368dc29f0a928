#pragma once

// What the files of the emulated runtime share. One lock guards the machine and these tables.

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "machine.h"

namespace emu {

std::mutex& Machine();

struct Function {
  std::string name;
  size_t source = 0;  // which module
  std::unique_ptr<ptx::Kernel> head, parsed;
  std::unique_ptr<Program> program;
  uint64_t most_dynamic = 0;  // cudaFuncAttributeMaxDynamicSharedMemorySize
};

struct Registry {
  std::vector<std::unique_ptr<ptx::Source>> sources;
  std::vector<std::string> texts;
  std::unordered_map<const void*, Function*> functions;  // by address on the host, and by handle
  std::map<const void*, std::pair<void*, size_t>> variables;
};
Registry& TheRegistry();

// What a stream was asked for. In a capture it is a node of the graph, which runs it whenever the
// graph is launched.
struct Task {
  cudaGraphNodeType type = cudaGraphNodeTypeKernel;
  std::function<cudaError_t()> run;
  // Of a launch of this module; none for what a library does.
  Function* function = nullptr;
  LaunchShape shape = {};
  bool cluster_given = false;  // by the launch, not by the kernel
  bool overlaps = false;       // may begin before the launch ahead of it has ended
};
struct Node {
  Task task;
  std::vector<Node*> after;
};
struct GraphData {
  std::vector<std::shared_ptr<Node>> nodes;  // in the order of the capture
  bool complete = false;
};
// Where a capture stands: what comes next waits for `last`.
struct Capture {
  std::shared_ptr<GraphData> graph;
  std::vector<Node*> last;
  bool under_way() const { return graph != nullptr && !graph->complete; }
};
struct StreamData {
  Capture capture;
};
struct EventData {
  std::chrono::steady_clock::time_point at;
  uint64_t launches = 0;  // until then
  Capture capture;
};
StreamData& DefaultStream();
StreamData& Of(cudaStream_t stream);

extern thread_local cudaError_t last_error;
extern thread_local int current_device;
extern std::atomic<uint64_t> launches;  // of kernels, that have run

// The host writes memory, and has waited for the thread's device.
void HostWrites(const void* to, size_t bytes);
void HostWaits();

// The error, kept for cudaGetLastError.
cudaError_t Give(cudaError_t error);
// At once, or when the graph runs that the stream is being captured into.
cudaError_t Do(cudaStream_t stream, Task task);

}  // namespace emu
