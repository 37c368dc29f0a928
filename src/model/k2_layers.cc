#include <optional>

#include "base/check.h"
#include "model/k2_step.h"

// The computation of a step: from tokens through the layers to logits.

namespace baltoro {
namespace {

// [T, width] seen as [T, heads, width / heads].
TensorView Heads(const TensorView& x, int64_t heads) {
  TensorView view = x;
  view.rank = 3;
  view.shape = {x.dim(0), heads, x.dim(1) / heads};
  view.stride = {x.stride[0], x.dim(1) / heads, 1};
  return view;
}

}  // namespace

void K2Model::Embed(const Inputs& in, const Activations& a) {
  ops_.embed(Scratch(), a.residual, weights_.embedding, in.tokens);
  if (share_.layout.tensor > 1) others().Sum(Scratch(), a.residual);
  if (in.override_rows.data != nullptr) {
    ops_.scatter_rows(Scratch(), a.residual, in.overrides, in.override_rows);
  }
}

void K2Model::AddAndNorm(const Activations& a, TensorView weight, OrderedRows* ordered) {
  const auto eps = static_cast<float>(config_.norm_eps);
  if (share_.layout.tensor > 1) {
    RankOps& ranks = others();
    const OpContext context = Scratch(ordered);
    if (ranks.SumAddRmsNorm(context, a.normed, a.residual, a.delta, weight, eps)) return;
    ranks.Sum(Scratch(), a.delta);
  }
  ops_.add_rms_norm(Scratch(ordered), a.normed, a.residual, a.delta, weight, eps);
}

void K2Model::Compute(const Inputs& in,
                      std::span<const int32_t> layers,
                      std::span<const KvLayerView> cache,
                      const Activations& a,
                      TensorView logits) {
  const auto eps = static_cast<float>(config_.norm_eps);
  if (share_.first_stage()) {
    Embed(in, a);
  } else {
    others().ReceiveFromStageBefore(Scratch(), a.residual);
  }
  const TensorView first_norm = weights_.layers[layers[0]].attention_norm;
  ops_.rms_norm(Scratch(), a.normed, a.residual, first_norm, eps);
  const auto first_layer = static_cast<int32_t>(share_.layers(config_).begin);
  std::optional<JoinedNorm> ahead;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerWeights& layer = weights_.layers[layers[i]];
    const LayerWeights* const next =
        i + 1 < layers.size() ? &weights_.layers[layers[i + 1]] : nullptr;
    const bool is_moe = config_.is_moe(first_layer + layers[i]);
    std::optional<JoinedNorm> middle, behind;
    if (is_moe) middle = JoinMlpNorm(layer, a);
    Attention(layer, in, cache[i], a, ahead ? &*ahead : nullptr, middle ? &*middle : nullptr);
    OrderedRows ordered{.data = is_moe ? a.ordered.data : nullptr};
    if (!middle) AddAndNorm(a, layer.mlp_norm, &ordered);
    if (is_moe) {
      if (next != nullptr) behind = JoinNextNorm(layer, *next, a);
      Moe(layer, a, middle ? &*middle : nullptr, behind ? &*behind : nullptr, &ordered);
    } else {
      Mlp(layer.mlp, a);
    }
    if (next != nullptr && !behind) AddAndNorm(a, next->attention_norm);
    ahead = behind;
  }
  if (share_.last_stage()) {
    // The last addition is made for the rows that are asked for.
    if (share_.layout.tensor > 1) others().Sum(Scratch(), a.delta);
    return Logits(in, a, logits);
  }
  // The next stage has its own norm: this one is not read.
  AddAndNorm(a, weights_.layers[layers.back()].mlp_norm);
  others().SendToNextStage(Scratch(), a.residual);
}

std::optional<JoinedNorm> K2Model::JoinMlpNorm(const LayerWeights& layer,
                                               const Activations& a) const {
  if (a.unscaled.data == nullptr) return std::nullopt;
  const JoinedNorm norm{.residual = a.residual,
                        .weight = layer.mlp_norm,
                        .rows = a.unscaled,
                        .squares = a.squares,
                        .eps = static_cast<float>(config_.norm_eps)};
  const TensorView shared(a.gate_up, ops_.act, {a.tokens, layer.mlp.gate_up.n});
  const bool joins = ops_.joined.adder_takes(norm, a.attention, layer.o) &&
                     ops_.joined.linear_takes(shared, norm, layer.mlp.gate_up) &&
                     ops_.joined.linear_takes(a.router, norm, layer.router);
  return joins ? std::optional(norm) : std::nullopt;
}

std::optional<JoinedNorm> K2Model::JoinNextNorm(const LayerWeights& layer,
                                                const LayerWeights& next,
                                                const Activations& a) const {
  // More than one product would take what lies behind.
  if (a.unscaled.data == nullptr || next.kv_a.n > 0 || config_.q_lora == 0) return std::nullopt;
  const JoinedNorm norm{.residual = a.residual,
                        .weight = next.attention_norm,
                        .rows = a.unscaled,
                        .squares = a.squares,
                        .eps = static_cast<float>(config_.norm_eps)};
  ExpertBankArgs bank = BankArgs(layer, a);
  bank.norm = &norm;
  const TensorView out = a.qkv_a.columns(0, next.qkv_a.n);
  const bool joins =
      ops_.joined.bank_takes(bank) && ops_.joined.linear_takes(out, norm, next.qkv_a);
  return joins ? std::optional(norm) : std::nullopt;
}

// Ranks sum what a sublayer adds before it is added.
bool K2Model::JoinsMoe() const {
  return ops_.joined.bank_takes != nullptr && share_.layout.tensor == 1 &&
         ops_.moe_inputs != nullptr && ops_.bank_adds_shared && config_.shared_experts > 0;
}

void K2Model::Attention(const LayerWeights& layer,
                        const Inputs& in,
                        const KvLayerView& cache,
                        const Activations& a,
                        const JoinedNorm* before,
                        const JoinedNorm* behind) {
  const auto eps = static_cast<float>(config_.latent_norm_eps);
  const TensorView latent = a.qkv_a.columns(config_.q_lora, config_.kv_lora);
  const TensorView key = a.qkv_a.columns(config_.q_lora + config_.kv_lora, config_.rope_dim);

  const TensorView inputs = a.qkv_a.columns(0, layer.qkv_a.n);
  const TensorView low = a.qkv_a.columns(0, config_.q_lora);
  const TensorView q = Heads(a.q, heads_);
  const bool joined = ops_.attention_inputs != nullptr && config_.q_lora > 0;
  const AttentionInputArgs between{.qkv_a = a.qkv_a,
                                   .q_norm = layer.q_norm,
                                   .kv_norm = layer.kv_norm,
                                   .positions = in.positions,
                                   .slots = in.slots,
                                   .rope = rope_table_,
                                   .cache = cache,
                                   .eps = eps,
                                   .q = joined ? q : TensorView(),
                                   .q_weight = layer.q};
  const MlaAttentionArgs args{.out = a.attention,
                              .q = q,
                              .cache = cache,
                              .sequences = in.sequences,
                              .plan = in.attention_plan,
                              .kv_b = layer.kv_b,
                              .uk_t = layer.uk_t,
                              .scale = softmax_scale_,
                              .heads = group_heads_,
                              .nope = static_cast<int32_t>(config_.nope),
                              .rope = static_cast<int32_t>(config_.rope_dim),
                              .value = static_cast<int32_t>(config_.value),
                              .latent = static_cast<int32_t>(config_.kv_lora),
                              .lse = {}};
  const bool whole = ops_.attention_layer != nullptr && joined && layer.kv_a.n == 0 &&
                     share_.layout.decode_context == 1;
  if (whole && ops_.attention_layer(Scratch(), {.x = a.normed,
                                                .before = before,
                                                .qkv_a = layer.qkv_a,
                                                .inputs = between,
                                                .attention = args,
                                                .o = layer.o,
                                                .out = a.delta,
                                                .behind = behind})) {
    return;
  }
  if (before != nullptr) {
    ops_.joined.linear_from_norm(Scratch(), inputs, *before, layer.qkv_a);
  } else {
    ops_.linear(Scratch(), inputs, a.normed, layer.qkv_a);
  }
  if (layer.kv_a.n > 0) {
    const TensorView kv_a = a.qkv_a.columns(config_.q_lora, config_.cache_width());
    ops_.linear(Scratch(), kv_a, a.normed, layer.kv_a);
  }
  if (ops_.attention_inputs != nullptr) {
    ops_.attention_inputs(Scratch(), between);
  } else {
    if (config_.q_lora > 0) ops_.rms_norm(Scratch(), low, low, layer.q_norm, eps);
    // Only the latent is normalised; the shared key is rotated as it is.
    ops_.rms_norm(Scratch(), latent, latent, layer.kv_norm, eps);
    ops_.rope(Scratch(), Heads(key, 1), in.positions, rope_table_);
    ops_.kv_write(Scratch(), cache, latent, key, in.slots);
  }
  if (!joined) {
    ops_.linear(Scratch(), a.q, config_.q_lora > 0 ? low : a.normed, layer.q);
    ops_.rope(Scratch(), q.columns(config_.nope, config_.rope_dim), in.positions, rope_table_);
  }
  if (share_.layout.decode_context > 1) {
    AttendTogether(args, a);
  } else {
    ops_.mla_attention(Scratch(), args);
  }
  if (behind != nullptr) {
    ops_.joined.linear_to_norm(Scratch(), *behind, a.attention, layer.o);
    return;
  }
  ops_.linear(Scratch(), a.delta, a.attention, layer.o);
}

// Both forms alike. Queries and results travel, not keys: a query of a head is a third as long as
// its folded form, a result a quarter of a latent one. Long prefills send more than the latents of
// their context would be, but no rank ever holds the keys of others.
void K2Model::AttendTogether(MlaAttentionArgs args, const Activations& a) {
  others().GatherHeads(Scratch(), a.group_q, a.q);
  args.q = Heads(a.group_q, group_heads_);
  args.out = a.group_attention;
  args.lse = a.lse;
  ops_.mla_attention(Scratch(), args);
  others().MergeHeads(Scratch(), a.attention, a.group_attention, a.lse);
}

void K2Model::Mlp(const MlpWeights& mlp, const Activations& a) {
  const TensorView gate_up(a.gate_up, ops_.act, {a.tokens, mlp.gate_up.n});
  const TensorView gated(a.gated, ops_.act, {a.tokens, mlp.down.k});
  ops_.linear(Scratch(), gate_up, a.normed, mlp.gate_up);
  ops_.swiglu(Scratch(), gated, gate_up);
  ops_.linear(Scratch(), a.delta, gated, mlp.down);
}

ExpertBankArgs K2Model::BankArgs(const LayerWeights& layer, const Activations& a) const {
  return {.out = a.delta,
          .x = a.normed,
          .ids = a.ids,
          .weights = a.weights,
          .gate_up = layer.experts_gate_up,
          .down = layer.experts_down,
          .slot_of = expert_slots_,
          .shared = TensorView(a.gate_up, ops_.act, {a.tokens, layer.mlp.gate_up.n}),
          .shared_down = layer.mlp.down};
}

void K2Model::Moe(const LayerWeights& layer,
                  const Activations& a,
                  const JoinedNorm* before,
                  const JoinedNorm* behind,
                  OrderedRows* ordered) {
  RouterParams router = config_.router;
  router.group_by_top2 = static_cast<bool>(layer.router_bias);
  const bool joined =
      ops_.moe_inputs != nullptr && ops_.bank_adds_shared && config_.shared_experts > 0;
  const TensorView shared(a.gate_up, ops_.act, {a.tokens, layer.mlp.gate_up.n});
  ExpertBankArgs bank = BankArgs(layer, a);
  bank.norm = behind;
  const ExpertChoice choice{.logits = a.router, .bias = layer.router_bias, .params = router};
  bank.choice = &choice;
  if (!joined || ops_.bank_chooses == nullptr || !ops_.bank_chooses(bank)) bank.choice = nullptr;
  if (joined) {
    ops_.moe_inputs(Scratch(), {.shared = shared,
                                .ids = a.ids,
                                .weights = a.weights,
                                .logits = a.router,
                                .x = a.normed,
                                .shared_gate_up = layer.mlp.gate_up,
                                .router = layer.router,
                                .bias = layer.router_bias,
                                .params = router,
                                .norm = before,
                                .chooses = bank.choice == nullptr});
  } else {
    // The shared experts see every token; the routed ones add to their output.
    if (config_.shared_experts > 0) {
      Mlp(layer.mlp, a);
    } else {
      ops_.clear(Scratch(), a.delta);
    }
    if (ops_.router != nullptr) {
      ops_.router(Scratch(), a.ids, a.weights, a.router, a.normed, layer.router, layer.router_bias,
                  router);
    } else {
      ops_.linear(Scratch(), a.router, a.normed, layer.router);
      ops_.route(Scratch(), a.ids, a.weights, a.router, layer.router_bias, router);
    }
  }
  if (!joined) bank.shared = {};
  ops_.expert_bank(Scratch(ordered), bank);
}

void K2Model::Logits(const Inputs& in, const Activations& a, TensorView logits) {
  const int64_t rows = in.logits_rows.dim(0);
  if (rows == 0) return;
  BT_CHECK(logits.rank == 2 && logits.dim(1) == config_.vocab && logits.dtype == DType::kF32);
  ops_.gather_rows(Scratch(), a.last_residual, a.residual, in.logits_rows);
  ops_.gather_rows(Scratch(), a.last_delta, a.delta, in.logits_rows);
  const TensorView normed = a.normed.rows(0, rows);
  const auto eps = static_cast<float>(config_.norm_eps);
  ops_.add_rms_norm(Scratch(), normed, a.last_residual, a.last_delta, weights_.final_norm, eps);
  if (share_.layout.tensor == 1) {
    ops_.linear(Scratch(), logits, normed, weights_.lm_head);
    return;
  }
  ops_.linear(Scratch(), a.part_logits, normed, weights_.lm_head);
  std::vector<int64_t> widths;
  for (int32_t rank = 0; rank < share_.layout.tensor; ++rank) {
    widths.push_back(EvenShare(config_.vocab, share_.layout.tensor, rank).size());
  }
  others().GatherColumns(Scratch(), logits, a.part_logits, widths);
}

}  // namespace baltoro
