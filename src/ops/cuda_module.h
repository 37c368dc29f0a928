#pragma once

// The CUDA operations as a module beside the program, opened at start if it is there: the program
// itself needs neither driver nor toolkit.

#include <string>

#include "base/status.h"
#include "ops/ops.h"

namespace baltoro {

struct GpuInfo {
  std::string name;
  int64_t memory_bytes = 0;  // as the driver reports it
};

// What the module gives out. Program and module are built from one source: `layout` and `version`
// say so.
struct CudaModule {
  int64_t layout = 0;  // kCudaModuleLayout
  const char* version = "";
  // Takes none of the GPU's memory. kUnavailable: no driver, too old a driver, no such GPU, or one
  // that kernels are not built for.
  Result<GpuInfo> (*describe)(int device) = nullptr;
  // For plans: types and packed sizes. Its operations must not be called.
  const OpsTable* (*table)() = nullptr;
  // Bytes a second of a kernel that only reads, on the current device.
  Result<double> (*read_rate)() = nullptr;
  // Makes the operations for a GPU, once per process and device; they stay to its end.
  Result<const OpsTable*> (*open)(int device) = nullptr;
};

// Changes whenever what crosses the border between program and module changes.
inline constexpr int64_t kCudaModuleLayout =
    int64_t{sizeof(OpsTable)} << 32 | int64_t{sizeof(MlaAttentionArgs)} << 16 |
    int64_t{sizeof(ExpertBankArgs)} << 8 | int64_t{sizeof(SampleRow)};

// The module is libbaltoro_cuda.so in the folder of the program, in ../lib beside that, or the file
// that BALTORO_CUDA_MODULE names. kUnavailable: none there, or not of this version.
Result<const CudaModule*> FindCudaModule();

}  // namespace baltoro
