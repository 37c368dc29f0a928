#pragma once

// The CUDA operations as a module beside the program, opened at start if it is there: the program
// itself needs neither driver nor toolkit.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "ops/ops.h"
#include "ops/rank_ops.h"

namespace baltoro {

struct GpuInfo {
  std::string name;
  bool is_share = false;         // of the multiprocessors of a GPU that has all: in tests alone
  int64_t memory_bytes = 0;      // as the driver reports it
  bool launches_overlap = true;  // false: BALTORO_NO_OVERLAP is 1
  int64_t kernel_overrides = 0;  // entries of the file that BALTORO_KERNEL_TABLE names
};

// A table of overrides (ops/cuda/choose/overrides.h), an entry a line.
struct KernelEntries {
  std::string text;
  std::string before_number;  // of a line, in errors and reasons: "FILE:", "FILE: entry "
};

// What the module gives out. Program and module are built from one source: `layout` and `version`
// say so.
struct CudaModule {
  int64_t layout = 0;  // kCudaModuleLayout
  const char* version = "";
  // Takes none of the GPU's memory. kUnavailable: no driver, too old a driver, no such GPU, or one
  // that kernels are not built for. kInvalidArgument: a wrong BALTORO_KERNEL_TABLE.
  Result<GpuInfo> (*describe)(int device) = nullptr;
  // For plans: types and packed sizes. Its operations must not be called.
  const OpsTable* (*table)() = nullptr;
  // Bytes a second of a kernel that only reads, on the current device.
  Result<double> (*read_rate)() = nullptr;
  // Makes the operations for a GPU, once per process and device; they stay to its end.
  Result<const OpsTable*> (*open)(int device) = nullptr;
  // The entries of these tables, in their order, in the place of those before. While nothing is
  // computed.
  Status (*set_kernel_table)(const std::vector<KernelEntries>& tables) = nullptr;
  // From now on `listener` is told each question of a choice as an entry would begin, what is
  // chosen for it by itself, and which other kernels take it; empty: nobody. Likewise.
  Status (*listen_to_choices)(
      std::function<void(const std::string& question,
                         const std::string& built_in,
                         const std::vector<std::string>& others)> listener) = nullptr;
  // The ranks of the world find each other; all call it at the same time, each from the thread that
  // will use what it gets. An error of one is an error of all, with its name.
  Result<std::unique_ptr<RankOps>> (*join_ranks)(const GpuRankArgs&) = nullptr;
  // Who writes the last line of the process when the module ends it (base/last_words.h).
  void (*set_last_line_writer)(void (*write)(const char* line)) = nullptr;
};

// Changes whenever what crosses the border between program and module changes.
inline constexpr int64_t kCudaModuleLayout = [] {
  int64_t layout = 0;
  for (const size_t bytes : {sizeof(OpsTable), sizeof(StepShape), sizeof(AttentionHalfArgs),
                             sizeof(ExpertsHalfArgs), sizeof(LogitsArgs), sizeof(SampleRow),
                             sizeof(GpuRankArgs), sizeof(GpuInfo), sizeof(KernelEntries)}) {
    layout = (layout * 4099 + static_cast<int64_t>(bytes)) % (int64_t{1} << 48);
  }
  return layout + static_cast<int64_t>(sizeof(CudaModule));
}();
static_assert(sizeof(OpsTable) < 2048 && sizeof(AttentionHalfArgs) < 4096 &&
              sizeof(ExpertsHalfArgs) < 4096 && sizeof(SampleRow) < 4096 &&
              sizeof(GpuRankArgs) < 4096);

// The module is libbaltoro_cuda.so in the folder of the program, in ../lib beside that, or the file
// that BALTORO_CUDA_MODULE names. kUnavailable: none there, or not of this version.
Result<const CudaModule*> FindCudaModule();

}  // namespace baltoro
