#include <fmt/format.h>
#include <fmt/ranges.h>

#include "plan/deals.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

// Of a length or number that is not the one that was asked for, or of further devices. A length
// that is hardly of use is one where nothing else is left.
std::vector<std::string> OtherWays(const MemoryPlan& plan, int64_t requests) {
  const PlanOptions& o = plan.options;
  std::vector<std::string> ways;
  std::string tiny;
  if (requests == 1) {
    const Shorter shorter = FindShorter(plan.model, o);
    if (IsUseful(plan.model, o, shorter.tokens)) {
      ways.push_back("with " + shorter.flags);
    } else if (shorter.tokens > 0) {
      tiny = "with " + shorter.flags;
    }
  } else if (plan.Holds(o.max_model_len, 1)) {
    int64_t most = requests - 1;
    while (!plan.Holds(o.max_model_len, most)) --most;
    ways.push_back(fmt::format("with --max-num-seqs {}", most));
  }
  if (const Fitting more = FindMoreDevices(plan.model, o, requests); more.found) {
    const int32_t devices = DevicesOf(more.options), nodes = NodesOf(more.options);
    ways.push_back(fmt::format(
        "on {} devices{} with {}", devices,
        nodes > 1 ? fmt::format(" ({} on each of {} nodes)", devices / nodes, nodes) : "",
        fmt::join(more.changes, " ")));
  }
  if (ways.empty() && !tiny.empty()) ways.push_back(tiny);
  return ways;
}

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

}  // namespace

void Advise(MemoryPlan& plan) {
  plan.demands = {DemandOf(plan, 1)};
  const int32_t most = plan.options.max_num_seqs;
  if (most > 1 && most <= 64) plan.demands.push_back(DemandOf(plan, most));
}

}  // namespace baltoro
