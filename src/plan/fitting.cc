#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/ops.h"
#include "plan/deals.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

constexpr double kUtilisationMax = 0.97;
constexpr double kUtilisationLast = 0.99;
constexpr int64_t kBatchedTokensMin = 512;
constexpr int64_t kBlockTokens = KvLayerView::kBlockTokens;

// Where nothing fits, devices are added up to here.
constexpr int32_t kDevicesMax = 128;
// Tokens that hold a question and its answer; less is hardly what somebody wants to serve.
constexpr int64_t kUsefulTokens = 2048;

std::vector<Variant> Candidates(const K2Config& config,
                                const Variant& from,
                                int64_t requests,
                                double utilisation_max) {
  const PlanOptions& base = from.options;
  std::vector<Variant> out = {from};
  const auto extend = [&out](auto&& variants) {
    std::vector<Variant> more;
    for (const Variant& c : out) variants(c, more);
    out.insert(out.end(), more.begin(), more.end());
  };
  extend([](const Variant& c, std::vector<Variant>& more) {
    if (c.options.deterministic) return;  // CheckFixedOrder would refuse it
    const int32_t tensor = c.options.layout.tensor;
    for (int32_t ways = 2; ways <= tensor; ++ways) {
      if (tensor % ways != 0 || ways <= c.options.layout.decode_context) continue;
      Variant next = c;
      next.options.layout.decode_context = ways;
      next.changes.push_back(fmt::format("--decode-context-parallel-size {}", ways));
      next.cost += 1000 + ways;
      more.push_back(std::move(next));
    }
  });
  extend([](const Variant& c, std::vector<Variant>& more) {
    if (c.options.kv != KvForm::kBf16) return;
    Variant next = c;
    next.options.kv = KvForm::kFp8;
    next.changes.emplace_back("--kv-cache-dtype fp8");
    next.cost += 1020;
    more.push_back(std::move(next));
  });
  extend([](const Variant& c, std::vector<Variant>& more) {
    double halvings = 0;
    for (int64_t tokens = c.options.max_num_batched_tokens / 2; tokens >= kBatchedTokensMin;
         tokens /= 2) {
      Variant next = c;
      next.options.max_num_batched_tokens = tokens;
      next.changes.push_back(fmt::format("--max-num-batched-tokens {}", tokens));
      next.cost += 1040 + ++halvings * 10;
      more.push_back(std::move(next));
    }
  });
  extend([&](const Variant& c, std::vector<Variant>& more) {
    if (!c.options.device.gpu || c.options.kv_cache_bytes > 0) return;
    for (int percent = static_cast<int>(std::floor(c.options.utilisation * 100 + 1e-6)) + 1;
         percent <= static_cast<int>(utilisation_max * 100 + 1e-6); ++percent) {
      Variant next = c;
      next.options.utilisation = percent / 100.0;
      next.changes.push_back(fmt::format("--gpu-memory-utilization {:.2f}", percent / 100.0));
      next.cost += 1150 + percent;
      more.push_back(std::move(next));
    }
  });
  extend([&](const Variant& c, std::vector<Variant>& more) {
    if (c.options.device.gpu) return;
    const int64_t length = base.max_model_len > 0 ? base.max_model_len : config.positions_max;
    const ParallelLayout& layout = c.options.layout;
    const int64_t all = requests * ((length + kBlockTokens - 1) / kBlockTokens);
    const int64_t blocks = (all + layout.decode_context - 1) / layout.decode_context;
    int64_t layers = 0;  // of the stage with most
    for (int32_t stage = 0; stage < layout.pipeline; ++stage) {
      const IndexRange range = StageLayers(layout, config.layers, stage);
      layers = std::max<int64_t>(layers, range.size());
    }
    const int64_t token = layers * KvTokenBytes(c.options.kv, config.kv_lora, config.rope_dim);
    Variant next = c;
    next.options.kv_cache_bytes = blocks * kBlockTokens * token;
    if (next.options.kv_cache_bytes == base.kv_cache_bytes) return;
    next.changes.push_back(fmt::format("--kv-cache-memory-bytes {}", next.options.kv_cache_bytes));
    next.cost += 900;
    more.push_back(std::move(next));
  });
  return out;
}

// As serve would have it; of a layout that is not the given one, what depends on it is counted
// anew.
Result<MemoryPlan> PlanVariant(const ModelDescription& model, PlanOptions options) {
  if (options.settle) BT_RETURN_IF_ERROR(options.settle(options));
  return PlanMemory(model, options);
}

bool Holds(const Result<MemoryPlan>& plan, int64_t requests) {
  return plan.ok() && plan.value().Holds(plan.value().options.max_model_len, requests);
}

// The nearest of the variants that flags of a rank's memory make of these.
std::optional<Variant> FindAmongFlags(const ModelDescription& model,
                                      const std::vector<Variant>& from,
                                      int64_t requests,
                                      double utilisation_max) {
  std::vector<Variant> candidates;
  for (const Variant& each : from) {
    std::vector<Variant> more = Candidates(model.config, each, requests, utilisation_max);
    std::ranges::move(more, std::back_inserter(candidates));
  }
  std::ranges::stable_sort(candidates, {}, &Variant::cost);
  for (Variant& candidate : candidates) {
    if (Holds(PlanMemory(model, candidate.options), requests)) return std::move(candidate);
  }
  return std::nullopt;
}

Fitting FittingOf(std::optional<Variant> variant, bool dealt_out) {
  if (!variant) return {};
  return {.found = true,
          .dealt_out = dealt_out,
          .options = std::move(variant->options),
          .changes = std::move(variant->changes)};
}

bool DealsAreKnown(const PlanOptions& options) {
  return options.device.gpu && (options.weight_bytes.empty() || options.settle);
}

// So many devices, dealt out to other numbers of ranks and replicas.
Fitting FindAmongDeals(const ModelDescription& model,
                       const PlanOptions& options,
                       int32_t devices,
                       int64_t requests,
                       bool same_replicas) {
  if (!DealsAreKnown(options)) return {};
  std::vector<Variant> deals;
  for (Variant& deal : DealsOf(options, devices, same_replicas)) {
    const Result<MemoryPlan> plan = PlanVariant(model, deal.options);
    if (!plan.ok()) continue;
    deal.options = plan.value().options;
    if (Holds(plan, requests)) return FittingOf(std::move(deal), /*dealt_out=*/true);
    deals.push_back(std::move(deal));
  }
  return FittingOf(FindAmongFlags(model, deals, requests, kUtilisationMax), /*dealt_out=*/true);
}

int64_t TokensOf(const ModelDescription& model, const PlanOptions& options) {
  const Result<MemoryPlan> plan = PlanMemory(model, options);
  return plan.ok() ? plan.value().kv_tokens : 0;
}

}  // namespace

int32_t DevicesOf(const PlanOptions& options) {
  return options.layout.ranks() * options.replicas;
}

bool IsUseful(const ModelDescription& model, const PlanOptions& options, int64_t tokens) {
  const int64_t asked =
      options.max_model_len > 0 ? options.max_model_len : model.config.positions_max;
  return tokens > 0 && tokens >= std::min(kUsefulTokens, asked / 2);
}

Shorter FindShorter(const ModelDescription& model, const PlanOptions& options) {
  const int64_t now = TokensOf(model, options);
  if (IsUseful(model, options, now) || !options.device.gpu || options.kv_cache_bytes > 0) {
    return {.tokens = now, .flags = now > 0 ? fmt::format("--max-model-len {}", now) : ""};
  }
  PlanOptions most = options;
  most.utilisation = std::max(options.utilisation, kUtilisationMax);
  const int64_t tokens = TokensOf(model, most);
  if (tokens == 0) return {};
  return {.tokens = tokens,
          .flags = fmt::format("--gpu-memory-utilization {:.2f} --max-model-len {}",
                               most.utilisation, tokens)};
}

Fitting FindFitting(const ModelDescription& model, const PlanOptions& options, int64_t requests) {
  const std::vector<Variant> given = {{.options = options}};
  Fitting fitting =
      FittingOf(FindAmongFlags(model, given, requests, kUtilisationMax), /*dealt_out=*/false);
  if (fitting.found || requests > 1) return fitting;  // fewer at once would do
  fitting = FindAmongDeals(model, options, DevicesOf(options), requests, /*same_replicas=*/false);
  if (fitting.found) return fitting;
  if (IsUseful(model, options, FindShorter(model, options).tokens)) return {};
  return FittingOf(FindAmongFlags(model, given, requests, kUtilisationLast), /*dealt_out=*/false);
}

Fitting FindMoreDevices(const ModelDescription& model,
                        const PlanOptions& options,
                        int64_t requests) {
  // Of weights that lie here, for the GPUs that are here.
  if (!options.device.gpu || !options.weight_bytes.empty()) return {};
  const int32_t twice = 2 * DevicesOf(options);
  for (int32_t devices = twice; devices <= std::max(kDevicesMax, twice); devices *= 2) {
    const bool same_replicas = requests > 1;
    Fitting found = FindAmongDeals(model, options, devices, requests, same_replicas);
    if (found.found) return found;
  }
  return {};
}

}  // namespace baltoro
