// Loaded by the CUDA driver into a program (CUDA_INJECTION64_PATH): writes a line for each kernel,
// those of replayed graphs too, to $KERNEL_TRACE: begin and end in ns, grid, name. Kernels that
// overlap stay so, which a profiler that runs them one by one does not show.
// tools/kernel_timeline.py builds, loads and reads it.

#include <cupti.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

constexpr size_t kBytes = size_t{16} << 20;
std::FILE* out = nullptr;
std::mutex writing;

void CUPTIAPI Give(uint8_t** buffer, size_t* bytes, size_t* records_max) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBytes));
  *bytes = *buffer == nullptr ? 0 : kBytes;
  *records_max = 0;  // as many as fit
}

void CUPTIAPI Take(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  const std::lock_guard lock(writing);
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
    if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
    // Later versions of the record begin with the same members.
    const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel9*>(record);
    std::fprintf(out, "%llu %llu %dx%dx%d %s\n", static_cast<unsigned long long>(kernel->start),
                 static_cast<unsigned long long>(kernel->end), kernel->gridX, kernel->gridY,
                 kernel->gridZ, kernel->name);
  }
  std::free(buffer);
}

void Finish() {
  cuptiActivityFlushAll(1);
  std::fclose(out);
}

}  // namespace

extern "C" int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TRACE");
  out = path == nullptr ? nullptr : std::fopen(path, "w");
  if (out == nullptr) return 0;
  if (cuptiActivityRegisterCallbacks(Give, Take) != CUPTI_SUCCESS ||
      cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
    std::fputs("# CUPTI refused\n", out);
    return 0;
  }
  std::atexit(Finish);
  return 1;
}
