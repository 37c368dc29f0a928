#include "engine/backend_choice.h"

#include <fmt/format.h>

#include <cstdlib>

#include "engine/fixed_steps.h"
#include "engine/load_choice.h"
#include "engine/nvidia_card.h"
#include "engine/nvidia_driver.h"
#include "ops/cpu/isa.h"
#include "ops/gpu_limits.h"

namespace baltoro {
namespace {

constexpr int kGpu = 0;  // what the first is, all are

Status CheckGpuType(DType act) {
  if (act == DType::kBf16) return {};
  return InvalidArgument("--dtype float32 is computed by CPUs alone: give --device cpu");
}

// Latent attention is written for these sizes.
Status CheckGpuAttention(const K2Config& model) {
  if (model.kv_lora != kGpuLatent || model.nope != kGpuNope || model.rope_dim != kGpuRope ||
      model.value != kGpuValue) {
    return InvalidArgument(fmt::format(
        "kv_lora_rank {}, qk_nope_head_dim {}, qk_rope_head_dim {}, v_head_dim {}: a GPU takes "
        "{}, {}, {} and {}; others are for --device cpu",
        model.kv_lora, model.nope, model.rope_dim, model.value, kGpuLatent, kGpuNope, kGpuRope,
        kGpuValue));
  }
  return {};
}

Result<BackendChoice> ChooseGpu(DType act) {
  BT_ASSIGN_OR_RETURN(GpuInfo gpu, FindGpu());
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  BT_RETURN_IF_ERROR(CheckGpuType(act));
  return BackendChoice{.ops = module->table(), .gpu = std::move(gpu)};
}

}  // namespace

void ChooseKernelLoading(int32_t ranks) {
  // Otherwise the module has them loaded at once. cuBLASLt's, of which few are used, take seconds.
  if (ranks == 1) setenv("CUDA_MODULE_LOADING", "LAZY", 0);
}

Result<GpuInfo> FindGpu() {
  BT_RETURN_IF_ERROR(CheckDriver());
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  return module->describe(kGpu);
}

Result<BackendChoice> ChooseBackend(const EngineConfig& config) {
  BT_ASSIGN_OR_RETURN(const DType act, ParseActivationType(config.dtype));
  if (config.device != "auto" && config.device != "cpu" && config.device != "cuda") {
    return InvalidArgument(
        fmt::format("--device is {}, expected auto, cpu or cuda", config.device));
  }
  if (config.device != "cpu") {
    Result<BackendChoice> gpu = ChooseGpu(act);
    if (gpu.ok()) return gpu;
    if (config.device == "cuda") {
      return Status(gpu.status().code(), "--device cuda: " + gpu.status().message());
    }
    BT_RETURN_IF_ERROR(
        CheckCpuIsMeant(LookForCard("/", std::getenv("CUDA_VISIBLE_DEVICES")), gpu.status()));
  }
  const Status chosen = cpu::ChooseIsa(std::getenv("BALTORO_CPU"));
  if (!chosen.ok()) {
    const bool named = chosen.code() == Code::kInvalidArgument;
    return Status(chosen.code(), (named ? "BALTORO_CPU: " : "") + chosen.message());
  }
  return BackendChoice{.ops = &CpuOps(act), .gpu = std::nullopt};
}

Result<BackendChoice> ChooseDescribedGpu(const EngineConfig& config, const GpuInfo& gpu) {
  BT_ASSIGN_OR_RETURN(const DType act, ParseActivationType(config.dtype));
  BT_RETURN_IF_ERROR(CheckGpuType(act));
  return BackendChoice{.ops = &CpuOps(act), .gpu = gpu};
}

Status CheckGpuTakes(const EngineConfig& config, const K2Config& model) {
  if (config.deterministic && 1 + config.speculation.drafts > kFixedDecodeRows) {
    return InvalidArgument(
        fmt::format("--deterministic: on a GPU a step computes {} rows of answers; give "
                    "--speculative-config a num_speculative_tokens of at most {}",
                    kFixedDecodeRows, kFixedDecodeRows - 1));
  }
  if (config.max_num_seqs > kGpuSequencesMax) {
    return InvalidArgument(
        fmt::format("--max-num-seqs {}: a step on a GPU has at most {} sequences",
                    config.max_num_seqs, kGpuSequencesMax));
  }
  BT_RETURN_IF_ERROR(CheckGpuAttention(model));
  if (model.experts > kGpuExpertsMax || model.router.top_k > kGpuChosenMax) {
    return InvalidArgument(fmt::format(
        "n_routed_experts {}, num_experts_per_tok {}: a GPU takes {} and {} at most; more are for "
        "--device cpu",
        model.experts, model.router.top_k, kGpuExpertsMax, kGpuChosenMax));
  }
  if (config.fp8_dispatch && model.hidden % 128 != 0) {
    return InvalidArgument(fmt::format(
        "--expert-dispatch-dtype fp8: hidden_size {} is not a multiple of 128, for which rows have "
        "a scale: leave it out",
        model.hidden));
  }
  if (const BalanceConfig& balance = config.balance;
      balance.enabled && model.experts + balance.redundant_experts > kGpuExpertsMax) {
    return InvalidArgument(fmt::format(
        "--eplb-config: num_redundant_experts {}: with {} experts a GPU takes {} at most",
        balance.redundant_experts, model.experts, kGpuExpertsMax - model.experts));
  }
  return {};
}

Status CheckGpuTakesDraft(const EngineConfig& config, const K2Config& draft) {
  if (config.deterministic) {
    return InvalidArgument(
        "--deterministic: on a GPU a step computes fixed numbers of rows, behind which no draft "
        "model can follow");
  }
  if (!draft.has_heads()) return CheckGpuAttention(draft);
  const int64_t width = draft.draft->head_width;
  if (GpuTakesHeadWidth(width)) return {};
  return InvalidArgument(fmt::format(
      "its heads are {} wide: a GPU takes 64 and 128; others are for --device cpu", width));
}

Status CheckGpus(int32_t wanted) {
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  for (int32_t device = 0; device < wanted; ++device) {
    const Result<GpuInfo> gpu = module->describe(device);
    if (gpu.ok()) continue;
    return InvalidArgument(
        fmt::format("{} ranks want a GPU each, and {}: give smaller --tensor-parallel-size and "
                    "--pipeline-parallel-size, more nodes (--nnodes), or --device cpu",
                    wanted, gpu.status().message()));
  }
  return {};
}

Result<const OpsTable*> OpenBackend(const BackendChoice& choice, int device) {
  if (!choice.gpu) return choice.ops;
  BT_ASSIGN_OR_RETURN(const CudaModule* const module, FindCudaModule());
  return module->open(device);
}

}  // namespace baltoro
