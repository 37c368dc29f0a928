#include "host_plan.h"

#include "base/log.h"
#include "device/buffer.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

Result<MemoryPlan> PlanHost(const EngineConfig& config) {
  BT_ASSIGN_OR_RETURN(ModelDescription model, DescribeModel(config.model_dir));
  const DType act =
      config.dtype == "float32" || config.dtype == "float" ? DType::kF32 : DType::kBf16;
  model.plain = PlainForm(act);
  model.kv_b = model.plain;
  model.vision_parameters = 0;  // not loaded
  PlanOptions options;
  options.device = {.name = "this machine",
                    .memory_bytes = static_cast<int64_t>(AvailableHostMemory()),
                    .gpu = false};
  options.kv_cache_bytes = config.kv_cache_bytes;
  options.max_model_len = config.max_model_len;
  options.allow_longer = config.allow_long_max_model_len;
  options.max_num_seqs = config.max_num_seqs;
  options.max_num_batched_tokens = config.max_num_batched_tokens;
  BT_ASSIGN_OR_RETURN(options.kv, ParseKvForm(config.kv_cache_dtype, act));
  return PlanMemory(model, options);
}

}  // namespace

Status FollowHostPlan(EngineConfig& config) {
  if (config.load_format == "stand-in") return {};
  const Result<MemoryPlan> planned = PlanHost(config);
  if (!planned.ok()) {
    BT_LOG(Warning, "No plan of the memory: {}", planned.status().message());
    return {};
  }
  const MemoryPlan& plan = planned.value();
  for (const std::string& line : ShortPlanText(plan)) BT_LOG(Info, "{}", line);
  if (!plan.Holds(plan.options.max_model_len, 1)) return InvalidArgument(MisfitText(plan));
  config.kv_cache_bytes = plan.stages.front().kv_bytes;
  return {};
}

}  // namespace baltoro
