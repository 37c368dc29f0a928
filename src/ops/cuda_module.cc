#include "ops/cuda_module.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <vector>

#include "base/check.h"

namespace baltoro {
namespace {

constexpr const char* kFile = "libbaltoro_cuda.so";

std::vector<std::filesystem::path> Places() {
  if (const char* named = std::getenv("BALTORO_CUDA_MODULE")) return {named};
  std::error_code ignored;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  return {program / kFile, program / ".." / "lib" / kFile};
}

Status Unavailable(std::string why) {
  return Status(Code::kUnavailable, std::move(why));
}

}  // namespace

Result<const CudaModule*> FindCudaModule() {
  const std::vector<std::filesystem::path> places = Places();
  for (const std::filesystem::path& place : places) {
    std::error_code ignored;
    if (!std::filesystem::exists(place, ignored)) continue;
    // Stays open: its operations live as long as the process.
    void* const module = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) return Unavailable(fmt::format("the CUDA module: {}", dlerror()));
    using Entry = const CudaModule* (*)();
    const auto entry = reinterpret_cast<Entry>(dlsym(module, "BaltoroCudaModule"));
    if (entry == nullptr) {
      return Unavailable(fmt::format("{} is not a CUDA module of Baltoro", place.string()));
    }
    const CudaModule& found = *entry();
    if (found.layout != kCudaModuleLayout) {
      return Unavailable(fmt::format("{} is of another version of Baltoro ({}): rebuild it",
                                     place.string(), found.version));
    }
    found.set_last_line_writer(WriteLastLine);
    return &found;
  }
  return Unavailable(
      fmt::format("there is no {}: it comes with a build where nvcc is found; BALTORO_CUDA_MODULE "
                  "names one elsewhere",
                  places.front().string()));
}

}  // namespace baltoro
