#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/grid_barrier.cuh"

namespace baltoro::cuda {
namespace {

constexpr int kCounters = 256;
constexpr int kApart = 32;  // a line each
constexpr int kDevices = 16;

__device__ uint32_t grid_counters[kCounters * kApart];

struct Device {
  std::map<std::pair<cudaStream_t, int>, uint32_t*> counters;
  std::map<cudaStream_t, int> widest;  // blocks of a stream's kernels: of one at a time
  int blocks = 0;                      // of all streams'
};

}  // namespace

uint32_t* GridCounter(cudaStream_t stream, int blocks) {
  static std::mutex* const mutex = new std::mutex;  // outlives what runs at the end of the process
  static Device* const devices = new Device[kDevices];
  if (blocks <= 0 || (blocks & (blocks - 1)) != 0) return nullptr;
  int number = 0, multiprocessors = 0;
  CheckCuda(cudaGetDevice(&number), "grid counter");
  if (number >= kDevices) return nullptr;
  const std::lock_guard lock(*mutex);
  Device& device = devices[number];
  const auto [found, is_new] = device.counters.try_emplace({stream, blocks}, nullptr);
  if (!is_new) return found->second;  // null for good where there was no room
  CheckCuda(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, number),
            "grid counter");
  int& widest = device.widest[stream];
  const int more = std::max(0, blocks - widest),
            place = static_cast<int>(device.counters.size()) - 1;
  if (device.blocks + more > multiprocessors || place >= kCounters) return nullptr;
  device.blocks += more;
  widest += more;
  void* base = nullptr;
  CheckCuda(cudaGetSymbolAddress(&base, grid_counters), "grid counter");
  found->second = static_cast<uint32_t*>(base) + place * kApart;
  return found->second;
}

}  // namespace baltoro::cuda
