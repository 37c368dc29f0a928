#include <algorithm>
#include <optional>

#include "base/check.h"
#include "base/log.h"
#include "model/k2_model.h"

// A step of the model: from a batch to logits.

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

// A step of one token a sequence, all of whose logits are wanted.
bool IsDecode(const ForwardBatch& batch) {
  if (batch.sequences.size() != batch.tokens.size() || !batch.override_rows.empty()) return false;
  if (batch.logits_rows.size() != batch.tokens.size()) return false;
  return std::ranges::all_of(batch.sequences, [](const AttentionSequence& s) {
    return s.query_count == 1 && s.first_position >= s.absorbed_from;
  });
}

}  // namespace

// Memory of one step, shared by all layers. T tokens.
struct K2Model::Activations {
  int64_t tokens = 0;
  TensorView residual;                   // [T, H] f32
  TensorView delta;                      // [T, H] f32: what a sublayer adds to the residual
  TensorView normed;                     // [T, H] act
  TensorView qkv_a;                      // [T, q_lora + R + P] act
  TensorView q;                          // [T, h (N + P)] act
  TensorView attention;                  // [T, h V] act
  void* gate_up;                         // [T, 2 I] act, of the widest MLP
  void* gated;                           // [T, I] act
  TensorView unscaled, squares;          // JoinedNorm::rows and squares; none: nothing is joined
  TensorView router;                     // [T, E] f32
  TensorView ids;                        // [T, k] i32
  TensorView weights;                    // [T, k] f32
  TensorView last_residual, last_delta;  // [logits rows, H] f32
  // Of ranks. g: heads of the decode-context group.
  TensorView group_q;          // [T, g (N + P)] act
  TensorView group_attention;  // [T, g V] act
  TensorView lse;              // [T, g] f32
  TensorView part_logits;      // [logits rows, this rank's vocabulary] f32
};

struct K2Model::Inputs {
  TensorView tokens, positions, slots;  // [T]
  TensorView logits_rows;               // [rows]
  TensorView override_rows, overrides;  // [M], [M, H]
  std::span<const AttentionSequence> sequences;
  const void* attention_plan = nullptr;
};

OpContext K2Model::Scratch() {
  op_scratch_.Reset();
  return {.pool = pool_, .scratch = &op_scratch_, .staging = &staging_, .stream = ops_.stream};
}

K2Model::Activations K2Model::Allocate(int64_t tokens, int64_t logits_rows, Arena& arena) const {
  const auto take_rows = [&](DType type, int64_t rows, int64_t width) {
    void* data = arena.Allocate(static_cast<size_t>(rows * width * SizeOf(type)));
    return TensorView(data, type, {rows, width});
  };
  const auto take = [&](DType type, int64_t width) { return take_rows(type, tokens, width); };
  int64_t inter = 0;
  for (const LayerWeights& layer : weights_.layers) inter = std::max(inter, layer.mlp.down.k);
  Activations a;
  a.tokens = tokens;
  a.residual = take(DType::kF32, config_.hidden);
  a.delta = take(DType::kF32, config_.hidden);
  a.normed = take(ops_.act, config_.hidden);
  if (JoinsMoe() && tokens <= JoinedNorm::kRowsMax) {
    a.unscaled = take(ops_.act, config_.hidden);
    a.squares = take(DType::kF32, JoinedNorm::kParts);
  }
  a.qkv_a = take(ops_.act, config_.q_lora + config_.cache_width());
  a.q = take(ops_.act, heads_ * config_.head_dim());
  a.attention = take(ops_.act, heads_ * config_.value);
  if (share_.layout.decode_context > 1) {
    a.group_q = take(ops_.act, group_heads_ * config_.head_dim());
    a.group_attention = take(ops_.act, group_heads_ * config_.value);
    a.lse = take(DType::kF32, group_heads_);
  }
  if (share_.layout.tensor > 1) {
    a.part_logits = take_rows(DType::kF32, logits_rows, share_.vocab(config_).size());
  }
  a.gate_up = take(ops_.act, 2 * inter).data;
  a.gated = take(ops_.act, inter).data;
  a.router = take(DType::kF32, config_.experts);
  a.ids = take(DType::kI32, config_.router.top_k);
  a.weights = take(DType::kF32, config_.router.top_k);
  a.last_residual = take_rows(DType::kF32, logits_rows, config_.hidden);
  a.last_delta = take_rows(DType::kF32, logits_rows, config_.hidden);
  return a;
}

void K2Model::Forward(const ForwardBatch& batch,
                      std::span<const KvLayerView> cache,
                      TensorView logits,
                      Arena& arena) {
  BT_CHECK(cache.size() == all_layers_.size());
  Run(batch, all_layers_, cache, logits, arena);
}

void K2Model::Run(const ForwardBatch& batch,
                  std::span<const int32_t> layers,
                  std::span<const KvLayerView> cache,
                  TensorView logits,
                  Arena& arena) {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  BT_CHECK(batch.positions.size() == batch.tokens.size());
  BT_CHECK(batch.slots.size() == batch.tokens.size());
  BT_CHECK(logits.dim(0) == static_cast<int64_t>(batch.logits_rows.size()));
  if (tokens == 0) return;
  const auto rows = static_cast<int64_t>(batch.logits_rows.size());
  const bool repeats =
      graphs_ && others().recordable() && layers.size() == all_layers_.size() && IsDecode(batch);
  // Room for the longest sequence that can come: where things lie must not change with lengths.
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const int64_t blocks_max = repeats ? (rope_table_.positions + kBlock - 1) / kBlock : 0;
  const Inputs in = Bring(batch, cache[0].form, blocks_max, arena);
  const Activations a = Allocate(tokens, rows, arena);
  const auto compute = [&] { Compute(in, layers, cache, a, logits); };
  if (!repeats) return compute();
  // Once sizes are recorded ahead, no others are: that would take memory while steps run.
  recorded_ahead_ = recorded_ahead_ || mode_ == StepMode::kRecord;
  if (mode_ == StepMode::kRun && recorded_ahead_ &&
      !graphs_->contains({batch.tokens.size(), logits.data})) {
    return compute();
  }
  const auto [recorded, is_first] = graphs_->try_emplace({batch.tokens.size(), logits.data});
  std::unique_ptr<OpGraph>& graph = recorded->second.graph;
  // The first step of a shape makes what operations keep for it, which cannot be recorded.
  if (!is_first && graph == nullptr) graph = ops_.capture(Scratch(), compute);
  if (mode_ == StepMode::kRecord) return;
  if (graph == nullptr) return compute();
  graph->Launch(Scratch());
}

K2Model::Inputs K2Model::Bring(const ForwardBatch& batch,
                               KvForm kv,
                               int64_t blocks_max,
                               Arena& arena) {
  // What the last step uploaded has arrived: its staging can be taken back.
  const Status waited = ops_.wait(Scratch());
  if (!waited.ok()) BT_LOG(Error, "{}", waited.message());
  BT_CHECK(waited.ok());
  staging_.Reset();
  const auto bring = [&]<typename Element>(std::span<const Element> data, DType type) {
    const void* at = ops_.upload(Scratch(), arena, data.data(), data.size_bytes());
    return TensorView(const_cast<void*>(at), type, {static_cast<int64_t>(data.size())});
  };
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  Inputs in;
  std::span<const int32_t> ids = batch.tokens;
  if (share_.layout.tensor > 1) {
    FindOwnTokens(batch);
    ids = own_tokens_;
  }
  in.tokens = bring(ids, DType::kI32);
  in.positions = bring(batch.positions, DType::kI32);
  in.sequences = batch.sequences;
  std::span<const int64_t> slots = batch.slots;
  if (share_.layout.decode_context > 1) {
    FindOwnKeys(batch);
    in.sequences = own_sequences_;
    slots = own_slots_;
  }
  in.slots = bring(slots, DType::kI64);
  for (const int32_t row : batch.logits_rows) BT_CHECK(row >= 0 && row < tokens);
  in.logits_rows = bring(batch.logits_rows, DType::kI32);
  in.attention_plan = ops_.plan_attention(Scratch(), arena,
                                          {.sequences = in.sequences,
                                           .tokens = tokens,
                                           .form = kv,
                                           .heads = group_heads_,
                                           .nope = static_cast<int32_t>(config_.nope),
                                           .rope = static_cast<int32_t>(config_.rope_dim),
                                           .value = static_cast<int32_t>(config_.value),
                                           .latent = static_cast<int32_t>(config_.kv_lora),
                                           .blocks_max = blocks_max,
                                           .part_blocks = key_part_blocks_});
  if (batch.override_rows.empty()) return in;
  const TensorView& from = batch.embedding_overrides;
  BT_CHECK(from.dtype == DType::kF32 && from.dim(1) == config_.hidden);
  BT_CHECK(from.dim(0) == static_cast<int64_t>(batch.override_rows.size()));
  for (const int32_t row : batch.override_rows) BT_CHECK(row >= 0 && row < tokens);
  in.override_rows = bring(batch.override_rows, DType::kI32);
  in.overrides = from;
  in.overrides.data = const_cast<void*>(ops_.upload(
      Scratch(), arena, from.data, static_cast<size_t>(from.num_elements()) * sizeof(float)));
  return in;
}

void K2Model::FindOwnKeys(const ForwardBatch& batch) {
  constexpr int64_t kBlock = KvLayerView::kBlockTokens;
  const auto own = [&](int64_t block, int64_t& local) {
    const BlockPlace place = PlaceOfBlock(share_.layout, block);
    local = place.block;
    return place.context == share_.place.context(share_.layout);
  };
  own_slots_.clear();
  for (const int64_t slot : batch.slots) {
    int64_t block;
    own_slots_.push_back(slot >= 0 && own(slot / kBlock, block) ? block * kBlock + slot % kBlock
                                                                : -1);
  }
  own_blocks_.clear();
  own_positions_.clear();
  own_sequences_.assign(batch.sequences.begin(), batch.sequences.end());
  std::vector<size_t> begins;
  for (AttentionSequence& sequence : own_sequences_) {
    begins.push_back(own_blocks_.size());
    int32_t keys = 0;
    for (int64_t b = 0; b * kBlock < sequence.key_count; ++b) {
      int64_t block;
      if (!own(sequence.blocks[b], block)) continue;
      own_blocks_.push_back(static_cast<int32_t>(block));
      own_positions_.push_back(sequence.block_positions.empty() ? static_cast<int32_t>(b * kBlock)
                                                                : sequence.block_positions[b]);
      keys += static_cast<int32_t>(std::min(kBlock, sequence.key_count - b * kBlock));
    }
    sequence.key_count = keys;
  }
  begins.push_back(own_blocks_.size());
  for (size_t i = 0; i < own_sequences_.size(); ++i) {
    const size_t count = begins[i + 1] - begins[i];
    own_sequences_[i].blocks = std::span<const int32_t>(own_blocks_).subspan(begins[i], count);
    own_sequences_[i].block_positions =
        std::span<const int32_t>(own_positions_).subspan(begins[i], count);
  }
}

void K2Model::FindOwnTokens(const ForwardBatch& batch) {
  const IndexRange vocab = share_.vocab(config_);
  own_tokens_.clear();
  for (const int32_t token : batch.tokens) {
    const bool own = token >= vocab.begin && token < vocab.end;
    own_tokens_.push_back(own ? static_cast<int32_t>(token - vocab.begin) : -1);
  }
}

void K2Model::Embed(const Inputs& in, const Activations& a) {
  ops_.embed(Scratch(), a.residual, weights_.embedding, in.tokens);
  if (share_.layout.tensor > 1) others().Sum(Scratch(), a.residual);
  if (in.override_rows.data != nullptr) {
    ops_.scatter_rows(Scratch(), a.residual, in.overrides, in.override_rows);
  }
}

void K2Model::AddAndNorm(const Activations& a, TensorView weight) {
  const auto eps = static_cast<float>(config_.norm_eps);
  if (share_.layout.tensor > 1) {
    RankOps& ranks = others();
    if (ranks.SumAddRmsNorm(Scratch(), a.normed, a.residual, a.delta, weight, eps)) return;
    ranks.Sum(Scratch(), a.delta);
  }
  ops_.add_rms_norm(Scratch(), a.normed, a.residual, a.delta, weight, eps);
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
    if (!middle) AddAndNorm(a, layer.mlp_norm);
    if (is_moe) {
      if (next != nullptr) behind = JoinNextNorm(layer, *next, a);
      Moe(layer, a, middle ? &*middle : nullptr, behind ? &*behind : nullptr);
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
  if (before != nullptr) {
    ops_.joined.linear_from_norm(Scratch(), inputs, *before, layer.qkv_a);
  } else {
    ops_.linear(Scratch(), inputs, a.normed, layer.qkv_a);
  }
  if (layer.kv_a.n > 0) {
    const TensorView kv_a = a.qkv_a.columns(config_.q_lora, config_.cache_width());
    ops_.linear(Scratch(), kv_a, a.normed, layer.kv_a);
  }
  const TensorView low = a.qkv_a.columns(0, config_.q_lora);
  const TensorView q = Heads(a.q, heads_);
  const bool joined = ops_.attention_inputs != nullptr && config_.q_lora > 0;
  if (ops_.attention_inputs != nullptr) {
    ops_.attention_inputs(Scratch(), {.qkv_a = a.qkv_a,
                                      .q_norm = layer.q_norm,
                                      .kv_norm = layer.kv_norm,
                                      .positions = in.positions,
                                      .slots = in.slots,
                                      .rope = rope_table_,
                                      .cache = cache,
                                      .eps = eps,
                                      .q = joined ? q : TensorView(),
                                      .q_weight = layer.q});
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
                  const JoinedNorm* behind) {
  RouterParams router = config_.router;
  router.group_by_top2 = static_cast<bool>(layer.router_bias);
  const bool joined =
      ops_.moe_inputs != nullptr && ops_.bank_adds_shared && config_.shared_experts > 0;
  const TensorView shared(a.gate_up, ops_.act, {a.tokens, layer.mlp.gate_up.n});
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
                                .norm = before});
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
  ExpertBankArgs bank = BankArgs(layer, a);
  if (!joined) bank.shared = {};
  bank.norm = behind;
  ops_.expert_bank(Scratch(), bank);
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
