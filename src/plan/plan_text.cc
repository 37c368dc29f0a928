#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/check.h"
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

// On which devices, where flags deal them out otherwise.
std::string FittingText(const Fitting& fitting) {
  return fmt::format(
      "{}with {}",
      fitting.dealt_out ? fmt::format("on the same {} devices ", DevicesOf(fitting.options)) : "",
      fmt::join(fitting.changes, " "));
}

// "6.52" of one replica, "104.35 in 16 replicas (6.52 in each)" of several.
std::string InReplicas(const MemoryPlan& plan, int64_t length, const std::string& what) {
  const double each = plan.Concurrency(length);
  if (plan.replicas == 1) return fmt::format("{:.2f} {}", each, what);
  return fmt::format("{:.2f} {} in {} replicas ({:.2f} in each)",
                     each * static_cast<double>(plan.replicas), what, plan.replicas, each);
}

std::string InEach(const MemoryPlan& plan) {
  return plan.replicas > 1 ? fmt::format(" in each of {} replicas", plan.replicas) : "";
}

// That weights, arenas and cache may take.
int64_t RankBytes(const PlanOptions& o) {
  return static_cast<int64_t>(static_cast<double>(o.device.memory_bytes) *
                              (o.device.gpu ? o.utilisation : 1.0));
}

void AppendDemand(const MemoryPlan& plan, const Demand& demand, std::string& out) {
  const int64_t length = plan.options.max_model_len;
  const std::string what = (demand.requests == 1 ? fmt::format("one request of {} tokens", length)
                                                 : fmt::format("{} requests of {} tokens at once",
                                                               demand.requests, length)) +
                           InEach(plan);
  if (demand.fits) {
    out += fmt::format("  {}: fits\n", what);
    return;
  }
  out += fmt::format("  {}: does not fit; needs {} of cache a rank, has {}\n", what,
                     GibText(demand.needed_bytes), GibText(demand.present_bytes));
  if (demand.fitting.found) {
    out += fmt::format("    fits {}\n", FittingText(demand.fitting));
    return;
  }
  if (demand.requests > 1) {
    out += "    no cache type, DCP, utilisation or batch size makes so many fit";
  } else {
    const int32_t devices = DevicesOf(plan.options);
    out += "    no flags make it fit";
    if (plan.options.device.gpu) {
      out += devices > 1 ? fmt::format(" on {} such devices", devices) : " on one such device";
    }
  }
  if (std::ranges::any_of(plan.stages, Missing)) {
    out += fmt::format("; weights and arenas alone are more than the {} of a rank",
                       GibText(RankBytes(plan.options)));
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
    if (demand.fitting.found) out["devices"] = DevicesOf(demand.fitting.options);
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
  return fmt::format("Fits: {}, {} tokens of KV cache{}",
                     InReplicas(plan, length, fmt::format("requests of {} tokens at once", length)),
                     plan.kv_tokens, plan.replicas > 1 ? " in each" : "");
}

Json PlanJson(const MemoryPlan& plan, const std::vector<int64_t>& lengths) {
  const PlanOptions& o = plan.options;
  Json out = {{"model", plan.model.name},
              {"device",
               {{"name", o.device.name}, {"bytes", o.device.memory_bytes}, {"gpu", o.device.gpu}}},
              {"ranks", DevicesOf(o)},
              {"tensor_parallel_size", o.layout.tensor},
              {"pipeline_parallel_size", o.layout.pipeline},
              {"decode_context_parallel_size", o.layout.decode_context},
              {"data_parallel_size", plan.replicas},
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
    const double each = plan.Concurrency(length);
    concurrency.push_back({{"tokens", length},
                           {"requests", each},
                           {"requests_in_all", each * static_cast<double>(plan.replicas)}});
  }
  out["concurrency"] = std::move(concurrency);
  Json demands = Json::array();
  for (const Demand& demand : plan.demands) demands.push_back(DemandJson(plan, demand));
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
      DevicesOf(o) > 1 ? fmt::format("Plan, each of {} ranks", DevicesOf(o)) : "Plan";
  return {fmt::format("{}: weights {}, arenas {}, {}; {} are there", of,
                      GibText(TotalBytes(rank.weights)), GibText(TotalBytes(rank.arenas)), cache,
                      GibText(o.device.memory_bytes)),
          fmt::format("Plan: {} bytes of KV cache a token ({}), {} tokens{}; longest request {} "
                      "tokens, {}",
                      rank.kv_token_bytes, KvFormName(o.kv), plan.kv_tokens, InEach(plan), longest,
                      InReplicas(plan, longest, "of that length at once"))};
}

std::string MisfitText(const MemoryPlan& plan) {
  const PlanOptions& o = plan.options;
  const RankPlan& rank = plan.stages.front();
  std::string out;
  if (rank.kv_bytes < 0) {
    const std::string there =
        o.device.gpu
            ? fmt::format("{} that --gpu-memory-utilization {:.2f} gives of {}",
                          GibText(RankBytes(o)), o.utilisation, GibText(o.device.memory_bytes))
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
  BT_CHECK(!plan.demands.empty());
  const Demand& one = plan.demands.front();
  if (one.fitting.found) {
    out += ". It fits " + FittingText(one.fitting);
    return IsUseful(plan.model, o, plan.kv_tokens)
               ? out + fmt::format(", or with --max-model-len {}", plan.kv_tokens)
               : out;
  }
  if (!one.ways.empty()) return out + fmt::format(". It fits {}", fmt::join(one.ways, ", or "));
  return out + ". No flag makes it fit" +
         (o.device.gpu ? " here; ranks of more GPUs hold less each (--tensor-parallel-size, "
                         "--pipeline-parallel-size): `baltoro plan MODEL --gpu NAME` says how many "
                         "it takes"
                       : "");
}

std::string PlanText(const MemoryPlan& plan, const std::vector<int64_t>& lengths) {
  const PlanOptions& o = plan.options;
  std::string out = fmt::format("{} on {} x {} ({} each): {}{}\n", plan.model.name, DevicesOf(o),
                                o.device.name, GibText(o.device.memory_bytes),
                                o.replicas > 1 ? fmt::format("{} replicas of ", o.replicas) : "",
                                LayoutText(o.layout));
  if (o.device.gpu) {
    out += fmt::format("Utilisation {:.2f}: {} a rank. ", o.utilisation, GibText(RankBytes(o)));
  }
  out += fmt::format("KV cache {}.\n", KvFormName(o.kv));
  for (const RankPlan& rank : plan.stages) AppendRank(plan, rank, out);
  out += fmt::format("GPU KV cache size: {} tokens{}\n", plan.kv_tokens, InEach(plan));
  out += fmt::format("  longest single request: {} tokens\n",
                     std::min(plan.kv_tokens, o.max_model_len));
  for (const int64_t length : lengths) {
    if (length > o.max_model_len) {
      out += fmt::format("  {} tokens per request: more than --max-model-len\n", length);
      continue;
    }
    const double each = plan.Concurrency(length);
    out += fmt::format("  Maximum concurrency for {} tokens per request: {:.2f}x{}\n", length, each,
                       plan.replicas > 1 ? fmt::format("{}, {:.2f}x in all", InEach(plan),
                                                       each * static_cast<double>(plan.replicas))
                                         : "");
  }
  for (const Demand& demand : plan.demands) AppendDemand(plan, demand, out);
  return out;
}

}  // namespace baltoro
