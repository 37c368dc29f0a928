#include "plan.h"

#include <fmt/format.h>

#include <cstdio>

#include "engine/backend_choice.h"
#include "host_plan.h"
#include "model/weight_slice.h"
#include "parallel/nodes.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

Result<MemoryPlan> MakePlan(const PlanCommand& command) {
  BT_ASSIGN_OR_RETURN(ModelDescription model, DescribeModel(command.model));
  if (command.online_quantization == "fp8") QuantiseOnline(model);
  PlanOptions options;
  BT_ASSIGN_OR_RETURN(options.device, FindDevice(command.gpu));
  BT_ASSIGN_OR_RETURN(options.kv, ParseKvForm(command.kv_cache_dtype, DType::kBf16));
  options.layout.tensor = command.tensor;
  options.layout.pipeline = command.pipeline;
  options.layout.decode_context = command.decode_context;
  options.layout.data = command.data;
  options.layout.whole_experts = command.whole_experts;
  options.layout.experts_in_turn = command.experts_in_turn;
  options.layout.redundant_experts = command.redundant_experts;
  options.utilisation = command.utilisation;
  options.kv_cache_bytes = command.kv_cache_bytes;
  options.max_model_len = command.max_model_len;
  options.max_num_seqs = command.max_num_seqs;
  options.max_num_batched_tokens = command.max_num_batched_tokens;
  options.graphs = command.graphs;
  CountSteps(model.config, command.deterministic, options);
  // As `serve` does where there are GPUs.
  EngineConfig config;
  config.max_num_seqs = command.max_num_seqs;
  BT_RETURN_IF_ERROR(CheckGpuTakes(config, model.config));
  BT_RETURN_IF_ERROR(CheckLayout(options.layout, ShapeOf(model.config)));
  if (command.deterministic && command.data == 1) {
    BT_RETURN_IF_ERROR(CheckFixedOrder(options.layout, command.nodes, /*gpus=*/true));
  }
  return PlanMemory(model, options);
}

}  // namespace

int RunPlan(const PlanCommand& command) {
  for (const std::string& notice : command.notices) fmt::print(stderr, "{}\n", notice);
  const Result<MemoryPlan> plan = MakePlan(command);
  if (!plan.ok()) {
    fmt::print(stderr, "baltoro plan: error: {}\n", plan.status().message());
    return 2;
  }
  std::vector<int64_t> lengths = command.lengths;
  if (lengths.empty()) lengths = {4096, 32768, 131072};
  if (command.data > 1) {
    fmt::print(stderr, "`baltoro serve` does not take --data-parallel-size above 1 yet\n");
  }
  std::fputs(PlanText(plan.value(), lengths).c_str(), stdout);
  return plan.value().Holds(plan.value().options.max_model_len, 1) ? 0 : 1;
}

}  // namespace baltoro
