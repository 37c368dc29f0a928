#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "ops/cuda/cuda_ops.h"
#include "ops/cuda/placed_launch.h"

namespace baltoro::cuda {

void CheckCuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) [[likely]]
    return;
  std::fprintf(stderr, "CUDA: %s: %s\n", what, cudaGetErrorString(error));
  std::fflush(stderr);
  std::abort();
}

void CheckOk(const Status& status) {
  if (status.ok()) [[likely]]
    return;
  std::fprintf(stderr, "CUDA: %s\n", status.message().c_str());
  std::fflush(stderr);
  std::abort();
}

bool LaunchesOverlap() {
  static const bool overlap = [] {
    const char* const wish = std::getenv("BALTORO_NO_OVERLAP");
    return wish == nullptr || std::string_view(wish) != "1";
  }();
  return overlap;
}

void CheckLaunch(const char* kernel) {
  CheckCuda(cudaGetLastError(), kernel);
}

}  // namespace baltoro::cuda
