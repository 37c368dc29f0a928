#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "plan/memory_plan.h"

namespace baltoro {
namespace {

constexpr double kGib = 1073741824.0;

std::string LayoutText(const ParallelLayout& layout) {
  std::string out = fmt::format("TP {}", layout.tensor);
  if (layout.pipeline > 1) out += fmt::format(" x PP {}", layout.pipeline);
  if (layout.data > 1) out += fmt::format(" x DP {}", layout.data);
  if (layout.decode_context > 1) out += fmt::format(", DCP {}", layout.decode_context);
  if (layout.whole_experts) out += ", expert parallel";
  if (layout.fp8_dispatch) out += ", FP8 dispatch";
  if (layout.balanced_experts) {
    out += fmt::format(", balanced with {} redundant experts", layout.redundant_experts);
  }
  return out + fmt::format(" ({} {})", layout.ranks(), layout.ranks() == 1 ? "rank" : "ranks");
}

void AppendItems(const std::vector<PlanItem>& items, std::string& out) {
  for (const PlanItem& item : items) {
    out += fmt::format("    {:<34}{:>12}   {}\n", item.name, GibText(item.bytes), item.note);
    while (out.size() > 1 && out[out.size() - 2] == ' ') out.erase(out.size() - 2, 1);
  }
}

void AppendRank(const MemoryPlan& plan, const RankPlan& rank, std::string& out) {
  const PlanOptions& o = plan.options;
  if (plan.stages.size() > 1) {
    const IndexRange layers = StageLayers(o.layout, plan.model.config.layers, rank.place.stage);
    out += fmt::format("  Stage {}: layers {} to {}\n", rank.place.stage, layers.begin,
                       layers.end - 1);
  }
  const int64_t weights = TotalBytes(rank.weights), arenas = TotalBytes(rank.arenas);
  out += fmt::format("  {:<36}{:>12}\n", "weights", GibText(weights));
  AppendItems(rank.weights, out);
  out += fmt::format("  {:<36}{:>12}\n", "arenas and the rest", GibText(arenas));
  AppendItems(rank.arenas, out);
  if (rank.kv_bytes < 0) {
    out += fmt::format("  {:<36}{:>12}   missing before any cache\n", "KV cache",
                       GibText(rank.kv_bytes));
    return;
  }
  out += fmt::format("  {:<36}{:>12}   {} blocks of 64 tokens, {} bytes a token here\n", "KV cache",
                     GibText(rank.kv_bytes), rank.kv_blocks, rank.kv_token_bytes);
}

bool Missing(const RankPlan& rank) {
  return rank.kv_bytes < 0;
}

// What is left where no flag of a rank's memory helps.
std::vector<std::string> OtherWays(const MemoryPlan& plan, int64_t requests) {
  std::vector<std::string> ways;
  if (requests == 1) {
    const std::string shorter = FindShorter(plan.model, plan.options);
    if (!shorter.empty()) ways.push_back("with " + shorter);
  } else if (plan.Holds(plan.options.max_model_len, 1)) {
    int64_t most = requests - 1;
    while (!plan.Holds(plan.options.max_model_len, most)) --most;
    ways.push_back(fmt::format("with --max-num-seqs {}", most));
  }
  const ParallelLayout& now = plan.options.layout;
  if (const auto more = FindLayout(plan.model, plan.options, requests)) {
    std::string flags;
    if (more->tensor != now.tensor) {
      flags += fmt::format(" --tensor-parallel-size {}", more->tensor);
    }
    if (more->pipeline != now.pipeline) {
      flags += fmt::format(" --pipeline-parallel-size {}", more->pipeline);
    }
    ways.push_back(fmt::format("on {} devices with{}", more->ranks(), flags));
  }
  return ways;
}

// Of so many requests of the full length.
struct Demand {
  int64_t requests = 1;
  bool fits = false;
  int64_t needed_bytes = 0, present_bytes = 0;  // of cache, of a rank
  Fitting fitting = {};
  std::vector<std::string> ways = {};  // where no fitting is found
};

Demand DemandOf(const MemoryPlan& plan, int64_t requests) {
  Demand demand{.requests = requests, .fits = plan.Holds(plan.options.max_model_len, requests)};
  const RankPlan& rank = plan.stages.front();
  demand.needed_bytes = rank.kv_token_bytes * plan.options.max_model_len * requests /
                        plan.options.layout.decode_context;
  demand.present_bytes = std::max<int64_t>(rank.kv_bytes, 0);
  if (demand.fits) return demand;
  demand.fitting = FindFitting(plan.model, plan.options, requests);
  if (!demand.fitting.found) demand.ways = OtherWays(plan, requests);
  return demand;
}

std::vector<Demand> DemandsOf(const MemoryPlan& plan) {
  std::vector<Demand> demands = {DemandOf(plan, 1)};
  const int32_t most = plan.options.max_num_seqs;
  if (most > 1 && most <= 64) demands.push_back(DemandOf(plan, most));
  return demands;
}

void AppendDemand(const MemoryPlan& plan, const Demand& demand, std::string& out) {
  const int64_t length = plan.options.max_model_len;
  const std::string what = demand.requests == 1 ? fmt::format("one request of {} tokens", length)
                                                : fmt::format("{} requests of {} tokens at once",
                                                              demand.requests, length);
  if (demand.fits) {
    out += fmt::format("  {}: fits\n", what);
    return;
  }
  out += fmt::format("  {}: does not fit; needs {} of cache a rank, has {}\n", what,
                     GibText(demand.needed_bytes), GibText(demand.present_bytes));
  if (demand.fitting.found) {
    out += fmt::format("    fits with {}\n", fmt::join(demand.fitting.changes, " "));
    return;
  }
  out += "    no cache type, DCP, utilisation or batch size makes it fit";
  if (std::ranges::any_of(plan.stages, Missing)) {
    out += "; the weights and arenas alone are more than there is";
  }
  if (!demand.ways.empty()) out += fmt::format("; it fits {}", fmt::join(demand.ways, ", or "));
  out += "\n";
}

Json DemandJson(const MemoryPlan& plan, const Demand& demand) {
  Json out = {{"requests", demand.requests},
              {"tokens", plan.options.max_model_len},
              {"fits", demand.fits},
              {"cache_bytes_needed", demand.needed_bytes},
              {"cache_bytes_present", demand.present_bytes}};
  if (!demand.fits) {
    out["fits_with"] = demand.fitting.changes;
    out["or_else"] = demand.ways;
  }
  return out;
}

Json ItemsJson(const std::vector<PlanItem>& items) {
  Json parts = Json::array();
  for (const PlanItem& item : items) {
    parts.push_back({{"name", item.name}, {"bytes", item.bytes}, {"note", item.note}});
  }
  return {{"bytes", TotalBytes(items)}, {"parts", std::move(parts)}};
}

}  // namespace

bool Fits(const MemoryPlan& plan) {
  return plan.Holds(plan.options.max_model_len, 1);
}

std::string FitText(const MemoryPlan& plan) {
  const int64_t length = plan.options.max_model_len;
  return fmt::format("Fits: {:.2f} requests of {} tokens at once, {} tokens of KV cache",
                     plan.Concurrency(length), length, plan.kv_tokens);
}

Json PlanJson(const MemoryPlan& plan, const std::vector<int64_t>& lengths) {
  const PlanOptions& o = plan.options;
  Json out = {{"model", plan.model.name},
              {"device",
               {{"name", o.device.name}, {"bytes", o.device.memory_bytes}, {"gpu", o.device.gpu}}},
              {"ranks", o.layout.ranks()},
              {"tensor_parallel_size", o.layout.tensor},
              {"pipeline_parallel_size", o.layout.pipeline},
              {"decode_context_parallel_size", o.layout.decode_context},
              {"expert_parallel", o.layout.whole_experts},
              {"expert_dispatch_dtype", o.layout.fp8_dispatch ? "fp8" : "auto"},
              {"expert_balance", o.layout.balanced_experts},
              {"redundant_experts", o.layout.redundant_experts},
              {"max_model_len", o.max_model_len},
              {"max_num_seqs", o.max_num_seqs},
              {"max_num_batched_tokens", o.max_num_batched_tokens},
              {"kv_cache_dtype", KvFormName(o.kv)},
              {"kv_cache_tokens", plan.kv_tokens},
              {"longest_request", std::min(plan.kv_tokens, o.max_model_len)}};
  if (o.device.gpu) out["gpu_memory_utilization"] = o.utilisation;
  Json stages = Json::array();
  for (const RankPlan& rank : plan.stages) {
    const IndexRange layers = StageLayers(o.layout, plan.model.config.layers, rank.place.stage);
    stages.push_back({{"first_layer", layers.begin},
                      {"last_layer", layers.end - 1},
                      {"weights", ItemsJson(rank.weights)},
                      {"arenas", ItemsJson(rank.arenas)},
                      {"kv_cache",
                       {{"bytes", rank.kv_bytes},
                        {"blocks", rank.kv_blocks},
                        {"bytes_per_token", rank.kv_token_bytes}}}});
  }
  out["stages"] = std::move(stages);
  Json concurrency = Json::array();
  for (const int64_t length : lengths) {
    if (length > o.max_model_len) continue;
    concurrency.push_back({{"tokens", length}, {"requests", plan.Concurrency(length)}});
  }
  out["concurrency"] = std::move(concurrency);
  Json demands = Json::array();
  for (const Demand& demand : DemandsOf(plan)) demands.push_back(DemandJson(plan, demand));
  out["demands"] = std::move(demands);
  return out;
}

std::string GibText(int64_t bytes) {
  return fmt::format("{:.2f} GiB", static_cast<double>(bytes) / kGib);
}

std::vector<std::string> ShortPlanText(const MemoryPlan& plan) {
  const PlanOptions& o = plan.options;
  const RankPlan& rank = plan.stages.front();
  const std::string cache = rank.kv_bytes < 0
                                ? GibText(-rank.kv_bytes) + " missing before any KV cache"
                                : "KV cache " + GibText(rank.kv_bytes);
  const int64_t longest = std::min(plan.kv_tokens, o.max_model_len);
  const std::string of =
      o.layout.ranks() > 1 ? fmt::format("Plan, each of {} ranks", o.layout.ranks()) : "Plan";
  return {fmt::format("{}: weights {}, arenas {}, {}; {} are there", of,
                      GibText(TotalBytes(rank.weights)), GibText(TotalBytes(rank.arenas)), cache,
                      GibText(o.device.memory_bytes)),
          fmt::format("Plan: {} bytes of KV cache a token ({}), {} tokens; longest request {} "
                      "tokens, {:.2f} of that length at once",
                      rank.kv_token_bytes, KvFormName(o.kv), plan.kv_tokens, longest,
                      plan.Concurrency(longest))};
}

std::string MisfitText(const MemoryPlan& plan) {
  const PlanOptions& o = plan.options;
  const RankPlan& rank = plan.stages.front();
  std::string out;
  if (rank.kv_bytes < 0) {
    const auto share =
        static_cast<int64_t>(static_cast<double>(o.device.memory_bytes) * o.utilisation);
    const std::string there =
        o.device.gpu ? fmt::format("{} that --gpu-memory-utilization {:.2f} gives of {}",
                                   GibText(share), o.utilisation, GibText(o.device.memory_bytes))
                     : GibText(o.device.memory_bytes) + " there";
    out = fmt::format("Weights ({}), arenas ({}) and the KV cache need {} more than the {}",
                      GibText(TotalBytes(rank.weights)), GibText(TotalBytes(rank.arenas)),
                      GibText(-rank.kv_bytes), there);
  } else {
    // The sentence that operators know.
    out = fmt::format(
        "To serve at least one request with the models's max seq len ({}), ({} KV cache is needed, "
        "which is larger than the available KV cache memory ({}). Based on the available memory, "
        "the estimated maximum model length is {}",
        o.max_model_len, GibText(rank.kv_token_bytes * o.max_model_len / o.layout.decode_context),
        GibText(rank.kv_bytes), plan.kv_tokens);
  }
  const Fitting fitting = FindFitting(plan.model, o, 1);
  const bool shorter = rank.kv_bytes >= 0 && plan.kv_tokens > 0;
  if (fitting.found) {
    out += fmt::format(". It fits with {}", fmt::join(fitting.changes, " "));
    return shorter ? out + fmt::format(", or with --max-model-len {}", plan.kv_tokens) : out;
  }
  const std::vector<std::string> ways = OtherWays(plan, 1);
  if (!ways.empty()) return out + fmt::format(". It fits {}", fmt::join(ways, ", or "));
  return out + ". No flag makes it fit" +
         (o.device.gpu ? " here; ranks of more GPUs hold less each (--tensor-parallel-size, "
                         "--pipeline-parallel-size): `baltoro plan` says how many it takes"
                       : "");
}

std::string PlanText(const MemoryPlan& plan, const std::vector<int64_t>& lengths) {
  const PlanOptions& o = plan.options;
  std::string out =
      fmt::format("{} on {} x {} ({} each): {}\n", plan.model.name, o.layout.ranks(), o.device.name,
                  GibText(o.device.memory_bytes), LayoutText(o.layout));
  if (o.device.gpu) {
    out += fmt::format(
        "Utilisation {:.2f}: {} a rank. ", o.utilisation,
        GibText(static_cast<int64_t>(static_cast<double>(o.device.memory_bytes) * o.utilisation)));
  }
  out += fmt::format("KV cache {}.\n", KvFormName(o.kv));
  for (const RankPlan& rank : plan.stages) AppendRank(plan, rank, out);
  out +=
      fmt::format("GPU KV cache size: {} tokens{}\n", plan.kv_tokens,
                  plan.replicas > 1 ? fmt::format(" in each of {} replicas", plan.replicas) : "");
  out += fmt::format("  longest single request: {} tokens\n",
                     std::min(plan.kv_tokens, o.max_model_len));
  for (const int64_t length : lengths) {
    if (length > o.max_model_len) {
      out += fmt::format("  {} tokens per request: more than --max-model-len\n", length);
      continue;
    }
    out += fmt::format("  Maximum concurrency for {} tokens per request: {:.2f}x\n", length,
                       plan.Concurrency(length));
  }
  for (const Demand& demand : DemandsOf(plan)) AppendDemand(plan, demand, out);
  return out;
}

}  // namespace baltoro
