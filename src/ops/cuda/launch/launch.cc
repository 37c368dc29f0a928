#include <algorithm>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/check.h"
#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/launch/placed_launch.h"

namespace baltoro::cuda {

void EndProcess(const std::string& why) {
  WriteLastLine((why + "\n").c_str());
  std::abort();
}

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) [[likely]]
    return;
  EndProcess(std::string("CUDA: ") + what + ": " + cudaGetErrorString(error));
}

void CheckOk(const Status& status) {
  if (status.ok()) [[likely]]
    return;
  EndProcess("CUDA: " + status.message());
}

bool LaunchesOverlap() {
  static const bool overlap = [] {
    const char* const wish = std::getenv("BALTORO_NO_OVERLAP");
    return wish == nullptr || std::string_view(wish) != "1";
  }();
  return overlap;
}

cudaError_t AllowShared(const void* kernel, int bytes) {
  static std::mutex mutex;
  static std::unordered_map<const void*, int> most;
  const std::lock_guard lock(mutex);
  int& allowed = most[kernel];
  allowed = std::max(allowed, bytes);
  // Of each device for itself, so it is said again.
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, allowed);
}

void CheckLaunch(const char* kernel) {
  CheckCuda(cudaGetLastError(), kernel);
}

}  // namespace baltoro::cuda
