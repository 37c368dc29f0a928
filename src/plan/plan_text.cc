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
std::string OtherWays(const MemoryPlan& plan, int64_t requests) {
  std::vector<std::string> ways;
  if (requests == 1 && plan.kv_tokens > 0) {
    ways.push_back(fmt::format("with --max-model-len {}", plan.kv_tokens));
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
  std::string out = std::ranges::any_of(plan.stages, Missing)
                        ? "; the weights and arenas alone are more than there is"
                        : "";
  if (!ways.empty()) out += fmt::format("; it fits {}", fmt::join(ways, ", or "));
  return out;
}

void AppendFitting(const MemoryPlan& plan, int64_t requests, std::string& out) {
  const int64_t length = plan.options.max_model_len;
  const std::string what = requests == 1
                               ? fmt::format("one request of {} tokens", length)
                               : fmt::format("{} requests of {} tokens at once", requests, length);
  if (plan.Holds(length, requests)) {
    out += fmt::format("  {}: fits\n", what);
    return;
  }
  const int64_t bytes =
      plan.stages.front().kv_token_bytes * length * requests / plan.options.layout.decode_context;
  out += fmt::format("  {}: does not fit; needs {} of cache a rank, has {}\n", what, GibText(bytes),
                     GibText(std::max<int64_t>(plan.stages.front().kv_bytes, 0)));
  const Fitting fitting = FindFitting(plan.model, plan.options, requests);
  if (fitting.found) {
    out += fmt::format("    fits with {}\n", fmt::join(fitting.changes, " "));
  } else {
    out += "    no cache type, DCP, utilisation or batch size makes it fit" +
           OtherWays(plan, requests) + "\n";
  }
}

}  // namespace

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
    out = fmt::format("Weights ({}), arenas ({}) and the KV cache need {} more than the {} there",
                      GibText(TotalBytes(rank.weights)), GibText(TotalBytes(rank.arenas)),
                      GibText(-rank.kv_bytes), GibText(o.device.memory_bytes));
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
  if (plan.kv_tokens > 0)
    return out + fmt::format(". It fits with --max-model-len {}", plan.kv_tokens);
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
  AppendFitting(plan, 1, out);
  if (o.max_num_seqs > 1 && o.max_num_seqs <= 64) AppendFitting(plan, o.max_num_seqs, out);
  return out;
}

}  // namespace baltoro
