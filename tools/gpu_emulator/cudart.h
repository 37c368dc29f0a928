#pragma once

// What the files of the emulated runtime share. One lock guards the machine and these tables.

#include <cuda_runtime_api.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "machine.h"

namespace emu {

std::mutex& Machine();

struct Function {
  std::string name;
  size_t source = 0;  // which module
  std::unique_ptr<Program> program;
  uint64_t most_dynamic = 0;  // cudaFuncAttributeMaxDynamicSharedMemorySize
};

struct Registry {
  std::vector<std::unique_ptr<ptx::Source>> sources;
  std::vector<std::string> texts;
  std::map<const void*, Function*> functions;
  std::map<const void*, std::pair<void*, size_t>> variables;
};
Registry& TheRegistry();

struct GraphData {
  std::vector<std::function<void()>> steps;
};
struct StreamData {
  GraphData* capture = nullptr;
  bool origin = false;
};
struct EventData {
  std::chrono::steady_clock::time_point at;
  GraphData* capture = nullptr;
};
StreamData& DefaultStream();
StreamData& Of(cudaStream_t stream);

extern thread_local cudaError_t last_error;
extern thread_local int current_device;

// The error, kept for cudaGetLastError.
cudaError_t Give(cudaError_t error);
// At once, or when the graph runs that the stream is being captured into.
void Do(cudaStream_t stream, std::function<void()> what);

}  // namespace emu
