#include "engine/nvidia_driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

namespace baltoro {

int DriverCudaVersion() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return -1;
  const auto ask = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  int version = -1;
  if (ask == nullptr || ask(&version) != 0) version = -1;
  dlclose(library);
  return version;
}

std::string CudaVersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::optional<DriverFault> JudgeCudaVersion(int version) {
  if (version >= kCudaVersionWanted) return std::nullopt;
  return DriverFault{
      .what = fmt::format(
          "the NVIDIA driver {}, and CUDA {} is needed",
          version < 0 ? "does not say which CUDA it has" : "has CUDA " + CudaVersionText(version),
          CudaVersionText(kCudaVersionWanted)),
      .remedy = fmt::format(
          "install driver {} or later; on data-centre cards NVIDIA's forward-compatibility package "
          "does as well: cuda-compat-13-0, with its folder (/usr/local/cuda-13.0/compat) first in "
          "LD_LIBRARY_PATH",
          kDriverWanted)};
}

Status CheckDriver() {
  const int version = DriverCudaVersion();
  if (version < 0) return {};
  const std::optional<DriverFault> fault = JudgeCudaVersion(version);
  if (!fault) return {};
  return Status(Code::kUnavailable, fmt::format("{}: {}", fault->what, fault->remedy));
}

}  // namespace baltoro
