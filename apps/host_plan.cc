#include "host_plan.h"

#include "base/log.h"
#include "device/buffer.h"
#include "engine/backend_choice.h"
#include "engine/load_choice.h"
#include "model/layer_weights.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

// What loading takes, to the byte.
Result<int64_t> CountWeights(const EngineConfig& config,
                             const K2Config& model,
                             const OpsTable& ops) {
  BT_ASSIGN_OR_RETURN(WeightChoice choice, ChooseWeights(config));
  choice.quiet = true;
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<WeightSource> source,
                      OpenWeights(config.model_dir, choice));
  BT_ASSIGN_OR_RETURN(const WeightPlan plan, PlanWeights(model, *source, ops, {}));
  return WeightBytes(plan, ops);
}

Result<MemoryPlan> PlanHost(const EngineConfig& config,
                            const BackendChoice& backend,
                            double utilisation) {
  const DType act = backend.ops->act;
  ModelDescription model;
  model.name = config.model_dir;
  BT_ASSIGN_OR_RETURN(model.config, K2Config::Read(config.model_dir));
  model.plain = PlainForm(act);
  PlanOptions options;
  BT_ASSIGN_OR_RETURN(options.weight_bytes, CountWeights(config, model.config, *backend.ops));
  options.device = {.name = "this machine",
                    .memory_bytes = static_cast<int64_t>(AvailableHostMemory()),
                    .gpu = false};
  if (backend.gpu) {
    options.device = {.name = backend.gpu->name, .memory_bytes = backend.gpu->memory_bytes};
    options.utilisation = utilisation;
    options.graphs = !config.enforce_eager;
  }
  options.kv_cache_bytes = config.kv_cache_bytes;
  options.max_model_len = config.max_model_len;
  options.allow_longer = config.allow_long_max_model_len;
  options.max_num_seqs = config.max_num_seqs;
  options.max_num_batched_tokens = config.max_num_batched_tokens;
  BT_ASSIGN_OR_RETURN(options.kv, ParseKvForm(config.kv_cache_dtype, act));
  return PlanMemory(model, options);
}

}  // namespace

Status FollowHostPlan(double utilisation, EngineConfig& config) {
  if (config.load_format == "stand-in") return {};
  BT_ASSIGN_OR_RETURN(const BackendChoice backend, ChooseBackend(config));
  config.device = backend.gpu ? "cuda" : "cpu";
  // What several ranks take of one machine, the engine counts.
  if (config.tensor_parallel_size > 1 || config.pipeline_parallel_size > 1) return {};
  BT_ASSIGN_OR_RETURN(const MemoryPlan plan, PlanHost(config, backend, utilisation));
  for (const std::string& line : ShortPlanText(plan)) BT_LOG(Info, "{}", line);
  if (!plan.Holds(plan.options.max_model_len, 1)) return InvalidArgument(MisfitText(plan));
  config.kv_cache_bytes = plan.stages.front().kv_bytes;
  config.weight_bytes = plan.options.weight_bytes;
  return {};
}

}  // namespace baltoro
