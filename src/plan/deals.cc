#include "plan/deals.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/gpu_exchange.h"
#include "parallel/nodes.h"

namespace baltoro {
namespace {

constexpr int32_t kStagesMax = 16;

struct Deal {
  int32_t tensor = 1, pipeline = 1, replicas = 1;
  bool whole_experts = false;
};

Deal DealOf(const PlanOptions& o) {
  return {.tensor = o.layout.tensor,
          .pipeline = o.layout.pipeline,
          .replicas = o.layout.data * o.replicas,
          .whole_experts = o.layout.whole_experts};
}

// How many nodes have replicas, each as many; 1 where --data-parallel-size-local does not say so.
int32_t NodesOfReplicas(const PlanOptions& o) {
  return o.local_replicas > 0 ? o.layout.data * o.replicas / o.local_replicas : 1;
}

PlanOptions Dealt(const PlanOptions& base, const Deal& deal) {
  PlanOptions next = base;
  const bool shared = deal.whole_experts && deal.replicas > 1;
  next.layout.tensor = deal.tensor;
  next.layout.pipeline = deal.pipeline;
  next.layout.data = shared ? deal.replicas : 1;
  next.layout.whole_experts = deal.whole_experts;
  next.replicas = shared ? 1 : deal.replicas;
  if (base.local_replicas > 0) {
    const int32_t nodes = NodesOfReplicas(base);  // as many as now
    next.local_replicas = deal.replicas / nodes;
    next.first_replica = base.first_replica / base.local_replicas * next.local_replicas;
    next.nodes = shared ? nodes : 1;
  }
  return next;
}

bool MayBe(const PlanOptions& next, int32_t nodes_of_replicas) {
  const int32_t replicas = next.layout.data * next.replicas;
  if (nodes_of_replicas > 1 && (replicas == 1 || replicas % nodes_of_replicas != 0)) return false;
  if (next.replicas > 1 && next.nodes > 1) return false;  // a replica over several nodes
  if (!CheckNodes(next.layout, next.nodes).ok() || !CheckExpertGroup(next.layout).ok()) {
    return false;
  }
  if (!CheckExpertBalance(next.layout, next.deterministic).ok()) return false;
  return !next.deterministic || CheckFixedOrder(next.layout, next.nodes, next.device.gpu).ok();
}

// The flags of what differs.
Variant VariantOf(const PlanOptions& base, PlanOptions next) {
  Variant out{.options = std::move(next)};
  const auto size = [&](const char* flag, int32_t from, int32_t to, double doubled = 10) {
    if (from == to) return;
    const double doublings = std::log2(static_cast<double>(to) / from);
    out.changes.push_back(fmt::format("--{} {}", flag, to));
    out.cost += 1000 + (doublings > 0 ? doublings * doubled : -10 * doublings);
  };
  const Deal from = DealOf(base), to = DealOf(out.options);
  size("tensor-parallel-size", from.tensor, to.tensor);
  // No token is sooner for a stage: they are for what a node cannot hold.
  size("pipeline-parallel-size", from.pipeline, to.pipeline, 1000);
  size("data-parallel-size", from.replicas, to.replicas);
  if (from.whole_experts != to.whole_experts) {
    out.changes.emplace_back(to.whole_experts ? "--enable-expert-parallel"
                                              : "--no-enable-expert-parallel");
    out.cost += 1000;
  }
  if (base.local_replicas > 0 && base.local_replicas != out.options.local_replicas) {
    // These follow from the number of replicas.
    out.changes.push_back(fmt::format("--data-parallel-size-local {}", out.options.local_replicas));
    if (base.first_replica > 0) {
      out.changes.push_back(
          fmt::format("--data-parallel-start-rank {}", out.options.first_replica));
    }
  }
  return out;
}

}  // namespace

int32_t NodesOf(const PlanOptions& options) {
  return std::max(options.nodes, NodesOfReplicas(options));
}

std::vector<Variant> DealsOf(const PlanOptions& options, int32_t devices, bool same_replicas) {
  const Deal now = DealOf(options);
  const int32_t tensor_max = std::max(cuda::kPeersMax, now.tensor);
  std::vector<Variant> out;
  for (int32_t tensor = std::min(tensor_max, devices); tensor >= 1; --tensor) {
    if (devices % tensor != 0) continue;
    for (int32_t pipeline = 1; pipeline <= std::max(kStagesMax, now.pipeline); ++pipeline) {
      if (devices / tensor % pipeline != 0) continue;
      const int32_t replicas = devices / tensor / pipeline;
      for (const bool whole : {false, true}) {
        // One replica has what it has; several share experts or not.
        if (whole != now.whole_experts && (replicas == 1 || same_replicas)) continue;
        if (same_replicas && replicas != now.replicas) continue;
        const Deal deal{tensor, pipeline, replicas, whole};
        Variant variant = VariantOf(options, Dealt(options, deal));
        if (variant.changes.empty() || !MayBe(variant.options, NodesOfReplicas(options))) continue;
        out.push_back(std::move(variant));
      }
    }
  }
  std::ranges::stable_sort(out, {}, &Variant::cost);
  return out;
}

}  // namespace baltoro
