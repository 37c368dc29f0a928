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

// GPU 0, or why it cannot be used; errors name no flag. Takes nothing of it.
Result<GpuInfo> FindGpu();

// Of --device and --dtype. "auto" takes GPU 0 where the machine has a card, and else the CPU; a
// card that cannot be used is an error (nvidia_card.h), as any reason is for "cuda". Takes nothing
// of the GPU.
Result<BackendChoice> ChooseBackend(const EngineConfig& config);

// The same for a GPU that need not be here, as a plan for another machine wants it: its sizes are
// `gpu`'s, and `ops` are those of a CPU, for what can be asked of any.
Result<BackendChoice> ChooseDescribedGpu(const EngineConfig& config, const GpuInfo& gpu);

// Whether a GPU's operations take the model and the steps; kInvalidArgument says what they do not.
Status CheckGpuTakes(const EngineConfig& config, const K2Config& model);

// Likewise the draft model; errors name no flag but --deterministic.
Status CheckGpuTakesDraft(const EngineConfig& config, const K2Config& draft);

// Whether there are so many GPUs to compute with; kInvalidArgument says which is missing.
Status CheckGpus(int32_t wanted);

// The operations themselves; of GPU `device` of those that CUDA_VISIBLE_DEVICES leaves, which is
// then the calling thread's.
Result<const OpsTable*> OpenBackend(const BackendChoice& choice, int device = 0);

}  // namespace baltoro
