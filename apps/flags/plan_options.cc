#include "flags/plan_options.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "flags/flag_reader.h"
#include "flags/help.h"
#include "flags/node_options.h"
#include "flags/serve_checks.h"
#include "flags/serve_command_line.h"
#include "flags/serve_flags.h"

namespace baltoro {
namespace {

using enum ValueKind;

constexpr FlagSpec kPlanFlags[] = {
    {.name = "gpu",
     .kind = kString,
     .initial = "h200-141g",
     .help = "The GPU of every rank: h100-80g, h800-80g, h20-96g, h200-141g, ..."},
    {.name = "lengths",
     .kind = kInts,
     .initial = "4096 32768 131072",
     .min = 1,
     .help = "Lengths of requests for which the concurrency is printed."},
};
constexpr std::string_view kPlanHelp = "What is planned; all flags of `serve` are taken as well.";

// What a plan looks at; other flags of `serve` are named as having no effect.
constexpr std::string_view kPlanned[] = {"model",
                                         "gpu",
                                         "lengths",
                                         "config",
                                         "gpu-memory-utilization",
                                         "kv-cache-memory-bytes",
                                         "max-model-len",
                                         "max-num-seqs",
                                         "max-num-batched-tokens",
                                         "kv-cache-dtype",
                                         "online-quantization",
                                         "enforce-eager",
                                         "deterministic",
                                         "nnodes",
                                         "tensor-parallel-size",
                                         "pipeline-parallel-size",
                                         "decode-context-parallel-size",
                                         "data-parallel-size",
                                         "enable-expert-parallel",
                                         "expert-placement-strategy",
                                         "eplb-config"};

}  // namespace

FlagTable PlanFlags() {
  std::vector<FlagGroup> groups = ServeFlags().groups();
  groups.push_back({"Plan", kPlanHelp, kPlanFlags});
  return FlagTable("baltoro plan", "MODEL [options]", std::move(groups));
}

FlagTable PlanOwnFlags() {
  return FlagTable("baltoro plan", "MODEL [options]", {{"Plan", kPlanHelp, kPlanFlags}});
}

Outcome<PlanCommand> ParsePlan(std::span<const std::string> args) {
  const FlagTable table = PlanFlags();
  if (std::optional<Ending> help = FindHelp(table, args)) return *std::move(help);
  const Result<ParsedFlags> parsed = ParseServeCommandLine(table, args);
  if (!parsed.ok()) return UsageError(table, parsed.status().message());
  const ParsedFlags& flags = parsed.value();
  if (const Status checked = CheckServeFlags(parsed.value()); !checked.ok()) {
    return UsageError(table, checked.message());
  }
  PlanCommand out;
  out.notices = flags.notices;
  for (const auto& [name, use] : flags.uses) {
    if (std::find(std::begin(kPlanned), std::end(kPlanned), name) != std::end(kPlanned)) continue;
    out.notices.push_back(use.spelling + " changes nothing in a plan");
  }
  Get(flags, "model", out.model);
  if (out.model.empty()) {
    return UsageError(table,
                      "MODEL is missing: a directory with a config.json, or a name such as "
                      "Kimi-K2-Thinking");
  }
  out.gpu = "h200-141g";
  Get(flags, "gpu", out.gpu);
  Get(flags, "gpu-memory-utilization", out.utilisation);
  Get(flags, "kv-cache-memory-bytes", out.kv_cache_bytes);
  Get(flags, "max-model-len", out.max_model_len);
  const FlagReader reader(flags);
  const StepSizes sizes =
      ChooseStepSizes(reader.Number("max-num-seqs", 0), reader.Number("max-num-batched-tokens", 0));
  out.max_num_seqs = sizes.max_num_seqs;
  out.max_num_batched_tokens = sizes.max_num_batched_tokens;
  Get(flags, "kv-cache-dtype", out.kv_cache_dtype);
  Get(flags, "online-quantization", out.online_quantization);
  bool eager = false;
  Get(flags, "enforce-eager", eager);
  out.graphs = !eager;
  Get(flags, "tensor-parallel-size", out.tensor);
  Get(flags, "pipeline-parallel-size", out.pipeline);
  Get(flags, "decode-context-parallel-size", out.decode_context);
  Get(flags, "data-parallel-size", out.data);
  Get(flags, "enable-expert-parallel", out.whole_experts);
  std::string placement;
  Get(flags, "expert-placement-strategy", placement);
  out.experts_in_turn = placement == "round_robin";
  Json eplb = Json::object();
  Get(flags, "eplb-config", eplb);
  if (eplb.contains("num_redundant_experts") && eplb["num_redundant_experts"].is_number_integer()) {
    out.redundant_experts = eplb["num_redundant_experts"].get<int32_t>();
  }
  Get(flags, "lengths", out.lengths);
  Get(flags, "deterministic", out.deterministic);
  Get(flags, "nnodes", out.nodes);
  const Status dealt =
      CheckDealtOut(out.tensor * out.pipeline * out.data, out.nodes, "the command line");
  if (!dealt.ok()) return UsageError(table, dealt.message());
  return out;
}

}  // namespace baltoro
