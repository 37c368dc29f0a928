#pragma once

// Where the model runs: the flags' wish against what the machine has.

#include <optional>

#include "base/status.h"
#include "engine/engine.h"
#include "model/k2_config.h"
#include "ops/cuda_module.h"
#include "ops/ops.h"

namespace baltoro {

struct BackendChoice {
  const OpsTable* ops = nullptr;  // of a GPU: for plans only, see OpenBackend
  std::optional<GpuInfo> gpu;     // empty: the CPU
};

// Before the process, or the one that starts it, first asks for a GPU: a rank that is alone loads
// kernels when it first uses them; several load all at start, as none may load while another waits
// for it. What CUDA_MODULE_LOADING says already stays.
void ChooseKernelLoading(int32_t ranks);

// Of --device and --dtype. "auto" takes GPU 0 where the CUDA module finds it usable, and else the
// CPU, with a line that says why where the module is there. "cuda" is an error then. Takes nothing
// of the GPU.
Result<BackendChoice> ChooseBackend(const EngineConfig& config);

// Whether a GPU's operations take the model and the steps; kInvalidArgument says what they do not.
Status CheckGpuTakes(const EngineConfig& config, const K2Config& model);

// Whether there are so many GPUs to compute with; kInvalidArgument says which is missing.
Status CheckGpus(int32_t wanted);

// The operations themselves; of GPU `device` of those that CUDA_VISIBLE_DEVICES leaves, which is
// then the calling thread's.
Result<const OpsTable*> OpenBackend(const BackendChoice& choice, int device = 0);

}  // namespace baltoro
