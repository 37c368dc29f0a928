#include "plan/weight_plan.h"

#include <fmt/format.h>

#include "parallel/expert_slots.h"

namespace baltoro {
namespace {

// One rank's share of every size that is cut.
struct Cuts {
  int64_t heads, vocab, dense, shared, expert;  // heads, rows, columns
  int64_t group_heads;                          // that a rank attends for, with its share of keys
  int64_t experts;                              // experts held
  IndexRange layers;
};

Cuts CutsOf(const K2Config& c, const ParallelLayout& layout, const RankPlace& place) {
  const auto share = [&](int64_t total) {
    return EvenShare(total, layout.tensor, place.tensor).size();
  };
  Cuts cuts;
  cuts.heads = share(c.heads);
  cuts.group_heads = cuts.heads * layout.decode_context;
  cuts.vocab = share(c.vocab);
  cuts.dense = share(c.intermediate);
  cuts.shared = share(c.moe_intermediate * c.shared_experts);
  const int32_t expert_rank = place.expert(layout);
  cuts.experts = ExpertsOf(layout, c.experts, expert_rank).count;
  cuts.expert = layout.whole_experts
                    ? c.moe_intermediate
                    : EvenShare(c.moe_intermediate, layout.expert_ranks(), expert_rank).size();
  cuts.layers = StageLayers(layout, c.layers, place.stage);
  return cuts;
}

int64_t MlpBytes(WeightForm form, int64_t hidden, int64_t columns) {
  return 2 * MatrixBytes(form, columns, hidden) + MatrixBytes(form, hidden, columns);
}

ModelDescription AsKept(ModelDescription model) {
  for (WeightForm* form :
       {&model.attention, &model.kv_b, &model.dense, &model.shared, &model.experts}) {
    if (IsPlain(*form)) *form = model.plain;
  }
  return model;
}

}  // namespace

int64_t TotalBytes(const std::vector<PlanItem>& items) {
  int64_t sum = 0;
  for (const PlanItem& item : items) sum += item.bytes;
  return sum;
}

std::vector<PlanItem> WeightsOfRank(const ModelDescription& stored,
                                    const ParallelLayout& layout,
                                    const RankPlace& place) {
  const ModelDescription model = AsKept(stored);
  const K2Config& c = model.config;
  const Cuts cut = CutsOf(c, layout, place);
  int64_t moe_layers = 0;
  for (int64_t l = cut.layers.begin; l < cut.layers.end; ++l) {
    moe_layers += c.is_moe(static_cast<int32_t>(l));
  }
  const int64_t layers = cut.layers.size(), dense_layers = layers - moe_layers;
  const bool first = place.stage == 0, last = place.stage == layout.pipeline - 1;

  // The down-projections are whole on every tensor rank.
  const int64_t down = (c.q_lora > 0 ? MatrixBytes(model.attention, c.q_lora, c.hidden) : 0) +
                       MatrixBytes(model.attention, c.cache_width(), c.hidden);
  const int64_t q =
      MatrixBytes(model.attention, cut.heads * c.head_dim(), c.q_lora > 0 ? c.q_lora : c.hidden);
  const int64_t kv_b = MatrixBytes(model.kv_b, cut.group_heads * (c.nope + c.value), c.kv_lora);
  const int64_t absorbed = MatrixBytes(model.plain, cut.group_heads * c.kv_lora, c.nope);
  const int64_t o = MatrixBytes(model.attention, c.hidden, cut.heads * c.value);
  const int64_t norms = 4 * (2 * c.hidden + c.q_lora + c.kv_lora);

  std::vector<PlanItem> out;
  const auto add = [&](std::string name, int64_t bytes, std::string note) {
    if (bytes > 0) out.push_back({std::move(name), bytes, std::move(note)});
  };
  const std::string whole = layout.tensor > 1 ? "whole on every tensor rank" : "";
  const auto part = [&](int32_t ranks) { return ranks > 1 ? fmt::format("1/{}", ranks) : whole; };
  const std::string sliced = part(layout.tensor);
  const std::string grouped = part(layout.tensor / layout.decode_context);
  const auto how = [&](WeightForm form, const std::string& spread) {
    return spread.empty() ? std::string(WeightFormName(form))
                          : fmt::format("{}; {}", WeightFormName(form), spread);
  };
  add("embedding", first ? MatrixBytes(model.plain, cut.vocab, c.hidden) : 0,
      how(model.plain, sliced));
  add("attention, down-projections", layers * down, how(model.attention, whole));
  add("attention, heads", layers * (q + o), how(model.attention, sliced));
  add("attention, kv_b", layers * kv_b, how(model.kv_b, grouped));
  add("attention, transposed keys of kv_b", layers * absorbed, how(model.plain, grouped));
  add("dense layers", dense_layers * MlpBytes(model.dense, c.hidden, cut.dense),
      how(model.dense, sliced));
  add("routed experts", moe_layers * cut.experts * MlpBytes(model.experts, c.hidden, cut.expert),
      how(model.experts, layout.expert_ranks() == 1 ? ""
                         : layout.redundant_experts > 0
                             ? fmt::format("{} of {} places for {} experts and {} copies",
                                           cut.experts, c.experts + layout.redundant_experts,
                                           c.experts, layout.redundant_experts)
                         : layout.balanced_experts
                             ? fmt::format("{} of {} experts, which move", cut.experts, c.experts)
                         : layout.whole_experts
                             ? fmt::format("{} of {} experts", cut.experts, c.experts)
                             : fmt::format("1/{} of each", layout.expert_ranks())));
  add("experts on their way",
      layout.balanced_experts && moe_layers > 0
          ? ExpertsOnTheirWay(BalanceShapeOf(layout, c.experts)) *
                MlpBytes(model.experts, c.hidden, cut.expert)
          : 0,
      how(model.experts, "between ranks (--enable-eplb)"));
  add("shared experts",
      moe_layers * (c.shared_experts > 0 ? MlpBytes(model.shared, c.hidden, cut.shared) : 0),
      how(model.shared, sliced));
  add("router",
      moe_layers * MatrixBytes(model.plain, c.experts, c.hidden) + moe_layers * 4 * c.experts,
      how(model.plain, whole));
  add("norms", layers * norms + (last ? 4 * c.hidden : 0), WeightFormName(WeightForm::kF32));
  add("head", last && !c.tied_embeddings ? MatrixBytes(model.plain, cut.vocab, c.hidden) : 0,
      how(model.plain, sliced));
  return out;
}

}  // namespace baltoro
