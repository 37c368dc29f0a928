#include <cstdio>
#include <cstdlib>

#include "ops/cuda/cuda_ops.h"

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

void CheckLaunch(const char* kernel) {
  CheckCuda(cudaGetLastError(), kernel);
}

}  // namespace baltoro::cuda
