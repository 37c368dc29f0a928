#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ops/gpu_exchange.h"
#include "ops/ops.h"
#include "plan/memory_plan.h"

namespace baltoro {
namespace {

constexpr double kUtilisationMax = 0.97;
constexpr double kUtilisationLast = 0.99;
constexpr int64_t kBatchedTokensMin = 512;
constexpr int64_t kBlockTokens = KvLayerView::kBlockTokens;

struct Candidate {
  PlanOptions options = {};
  std::vector<std::string> changes;
  double cost = 0;  // a thousand for each flag changed, then how far
};

std::vector<Candidate> Candidates(const K2Config& config,
                                  const PlanOptions& base,
                                  int64_t requests,
                                  double utilisation_max) {
  std::vector<Candidate> out = {{.options = base, .changes = {}}};
  const auto extend = [&out](auto&& variants) {
    std::vector<Candidate> more;
    for (const Candidate& c : out) variants(c, more);
    out.insert(out.end(), more.begin(), more.end());
  };
  extend([](const Candidate& c, std::vector<Candidate>& more) {
    if (c.options.deterministic) return;  // CheckFixedOrder would refuse it
    const int32_t tensor = c.options.layout.tensor;
    for (int32_t ways = 2; ways <= tensor; ++ways) {
      if (tensor % ways != 0 || ways <= c.options.layout.decode_context) continue;
      Candidate next = c;
      next.options.layout.decode_context = ways;
      next.changes.push_back(fmt::format("--decode-context-parallel-size {}", ways));
      next.cost += 1000 + ways;
      more.push_back(std::move(next));
    }
  });
  extend([](const Candidate& c, std::vector<Candidate>& more) {
    if (c.options.kv != KvForm::kBf16) return;
    Candidate next = c;
    next.options.kv = KvForm::kFp8;
    next.changes.emplace_back("--kv-cache-dtype fp8");
    next.cost += 1020;
    more.push_back(std::move(next));
  });
  extend([](const Candidate& c, std::vector<Candidate>& more) {
    double halvings = 0;
    for (int64_t tokens = c.options.max_num_batched_tokens / 2; tokens >= kBatchedTokensMin;
         tokens /= 2) {
      Candidate next = c;
      next.options.max_num_batched_tokens = tokens;
      next.changes.push_back(fmt::format("--max-num-batched-tokens {}", tokens));
      next.cost += 1040 + ++halvings * 10;
      more.push_back(std::move(next));
    }
  });
  extend([&](const Candidate& c, std::vector<Candidate>& more) {
    if (!c.options.device.gpu || c.options.kv_cache_bytes > 0) return;
    for (int percent = static_cast<int>(std::floor(c.options.utilisation * 100 + 1e-6)) + 1;
         percent <= static_cast<int>(utilisation_max * 100 + 1e-6); ++percent) {
      Candidate next = c;
      next.options.utilisation = percent / 100.0;
      next.changes.push_back(fmt::format("--gpu-memory-utilization {:.2f}", percent / 100.0));
      next.cost += 1150 + percent;
      more.push_back(std::move(next));
    }
  });
  extend([&](const Candidate& c, std::vector<Candidate>& more) {
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
    Candidate next = c;
    next.options.kv_cache_bytes = blocks * kBlockTokens * token;
    if (next.options.kv_cache_bytes == base.kv_cache_bytes) return;
    next.changes.push_back(fmt::format("--kv-cache-memory-bytes {}", next.options.kv_cache_bytes));
    next.cost += 900;
    more.push_back(std::move(next));
  });
  return out;
}

constexpr int32_t kStagesMax = 16;

Fitting FindAmongFlags(const ModelDescription& model,
                       const PlanOptions& options,
                       int64_t requests,
                       double utilisation_max) {
  std::vector<Candidate> candidates = Candidates(model.config, options, requests, utilisation_max);
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Candidate& a, const Candidate& b) { return a.cost < b.cost; });
  for (Candidate& candidate : candidates) {
    const Result<MemoryPlan> plan = PlanMemory(model, candidate.options);
    if (!plan.ok() || !plan.value().Holds(plan.value().options.max_model_len, requests)) continue;
    return {.found = true,
            .options = std::move(candidate.options),
            .changes = std::move(candidate.changes)};
  }
  return {};
}

int64_t TokensOf(const ModelDescription& model, const PlanOptions& options) {
  const Result<MemoryPlan> plan = PlanMemory(model, options);
  return plan.ok() ? plan.value().kv_tokens : 0;
}

}  // namespace

std::string FindShorter(const ModelDescription& model, const PlanOptions& options) {
  if (const int64_t tokens = TokensOf(model, options); tokens > 0) {
    return fmt::format("--max-model-len {}", tokens);
  }
  if (!options.device.gpu || options.kv_cache_bytes > 0) return "";
  PlanOptions most = options;
  most.utilisation = std::max(options.utilisation, kUtilisationMax);
  const int64_t tokens = TokensOf(model, most);
  if (tokens == 0) return "";
  return fmt::format("--gpu-memory-utilization {:.2f} --max-model-len {}", most.utilisation,
                     tokens);
}

Fitting FindFitting(const ModelDescription& model, const PlanOptions& options, int64_t requests) {
  Fitting fitting = FindAmongFlags(model, options, requests, kUtilisationMax);
  // Fewer at once, or a shorter one, would do.
  if (fitting.found || requests > 1 || !FindShorter(model, options).empty()) return fitting;
  return FindAmongFlags(model, options, requests, kUtilisationLast);
}

std::optional<ParallelLayout> FindLayout(const ModelDescription& model,
                                         const PlanOptions& options,
                                         int64_t requests) {
  if (!options.device.gpu || !options.weight_bytes.empty()) return std::nullopt;
  std::vector<ParallelLayout> layouts;
  for (int32_t tensor = options.layout.tensor; tensor <= cuda::kPeersMax; tensor *= 2) {
    for (int32_t stages = options.layout.pipeline; stages <= kStagesMax; stages *= 2) {
      ParallelLayout layout = options.layout;
      layout.tensor = tensor;
      layout.pipeline = stages;
      if (layout.ranks() > options.layout.ranks()) layouts.push_back(layout);
    }
  }
  std::ranges::stable_sort(layouts, [](const ParallelLayout& a, const ParallelLayout& b) {
    return a.ranks() != b.ranks() ? a.ranks() < b.ranks() : a.tensor > b.tensor;
  });
  for (const ParallelLayout& layout : layouts) {
    PlanOptions next = options;
    next.layout = layout;
    const Result<MemoryPlan> plan = PlanMemory(model, next);
    if (plan.ok() && plan.value().Holds(plan.value().options.max_model_len, requests)) {
      return layout;
    }
  }
  return std::nullopt;
}

}  // namespace baltoro
