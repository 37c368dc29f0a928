#include "ops/compose/composed_state.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "ops/expert_exchange.h"
#include "ops/group_rows.h"
#include "ops/rank_ops.h"

namespace baltoro {
ComposedState::ComposedState(
    const SmallOps& ops, const OpContext& context, Arena& arena, const StepShape& shape, DType part)
    : ops_(ops), context_(context), shape_(shape) {
  BT_CHECK((shape.tensor_ranks == 1 && shape.context_ranks == 1) || shape.ranks != nullptr);
  const auto take_rows = [&](DType type, int64_t rows, int64_t width) {
    void* data = arena.Allocate(static_cast<size_t>(rows * width * SizeOf(type)));
    return TensorView(data, type, {rows, width});
  };
  const auto take = [&](DType type, int64_t width) { return take_rows(type, shape.tokens, width); };
  const int64_t head = shape.nope + shape.rope;
  residual_ = take(DType::kF32, shape.hidden);
  // Room for f32 in any case: no step needs more than one of more rows.
  delta_ = take(DType::kF32, shape.hidden);
  delta_ = TensorView(delta_.data, part, {shape.tokens, shape.hidden});
  normed_ = take(ops.act, shape.hidden);
  if (shape.head_width == 0) {
    qkv_a_ = take(ops.act, shape.q_lora + shape.latent + shape.rope);
    q_ = take(ops.act, shape.heads * head);
  }
  attention_ = take(ops.act, shape.heads * shape.value);
  if (shape.context_ranks > 1) {
    group_q_ = take(ops.act, shape.group_heads * head);
    group_attention_ = take(ops.act, shape.group_heads * shape.value);
    lse_ = take(DType::kF32, shape.group_heads);
  }
  if (among_ranks()) part_logits_ = take_rows(DType::kF32, shape.logits_rows, shape.vocab);
  gate_up_ = take(ops.act, 2 * shape.intermediate).data;
  gated_ = take(ops.act, shape.intermediate).data;
  router_ = take(DType::kF32, shape.num_experts);
  ids_ = take(DType::kI32, shape.top_k);
  weights_ = take(DType::kF32, shape.top_k);
  if (shape.feature_parts > 0) {
    beside_ = take(DType::kF32, shape.hidden);
    features_ = take(ops.act, shape.feature_parts * shape.hidden);
    pair_ = take(ops.act, 2 * shape.hidden);
    qkv_ = take(ops.act, (shape.heads + 2 * shape.key_heads) * shape.head_width);
  }
  if (shape.exchange != nullptr) {
    const auto& rows = shape.group_rows;
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    group_rows_ = take_rows(ops.act, all, shape.hidden);
    group_ids_ = take_rows(DType::kI32, all, shape.top_k);
    group_weights_ = take_rows(DType::kF32, all, shape.top_k);
    group_delta_ = take_rows(DType::kF32, all, shape.hidden);
  }
  last_residual_ = take_rows(DType::kF32, shape.logits_rows, shape.hidden);
  last_delta_ = take_rows(DType::kF32, shape.logits_rows, shape.hidden);
}

OpContext ComposedState::Fresh() {
  context_.scratch->Reset();
  return context_;
}

TensorView ComposedState::gate_up(int64_t width) const {
  return {gate_up_, ops_.act, {shape_.tokens, width}};
}

// [T, width] seen as [T, heads, width / heads].
TensorView ComposedState::Heads(const TensorView& x, int64_t heads) const {
  TensorView view = x;
  view.rank = 3;
  view.shape = {x.dim(0), heads, x.dim(1) / heads};
  view.stride = {x.stride[0], x.dim(1) / heads, 1};
  return view;
}

void ComposedState::Embed(TensorView table, TensorView ids, int64_t first) {
  ops_.embed(Fresh(), residual_, table, ids, first);
  if (among_ranks()) shape_.ranks->Sum(Fresh(), residual_);
  added_ = true;
}

void ComposedState::Override(TensorView values, TensorView rows) {
  BT_CHECK(added_);  // before the first half
  ops_.scatter_rows(Fresh(), residual_, values, rows);
}

void ComposedState::TakeFeatures(const FeatureArgs& args) {
  BT_CHECK(added_ && beside_);  // before the first half
  const auto parts = std::ssize(args.parts);
  BT_CHECK(parts > 0 && parts <= shape_.feature_parts);
  std::swap(beside_, residual_);  // what was embedded
  if (args.fc.n == 0) {
    BT_CHECK(parts == 1);
    return ops_.gather_rows(Fresh(), residual_, args.parts[0], args.rows);
  }
  for (int64_t i = 0; i < parts; ++i) {
    ops_.gather_rows(Fresh(), features_.columns(i * shape_.hidden, shape_.hidden), args.parts[i],
                     args.rows);
  }
  ops_.linear(Fresh(), residual_, features_.columns(0, parts * shape_.hidden), args.fc);
}

TensorView ComposedState::DraftInput(TensorView beside_norm, TensorView norm, float eps) {
  BT_CHECK(added_ && beside_);  // the first layer, of which a draft has no other
  const int64_t hidden = shape_.hidden;
  ops_.rms_norm(Fresh(), pair_.columns(0, hidden), beside_, beside_norm, eps);
  ops_.rms_norm(Fresh(), pair_.columns(hidden, hidden), residual_, norm, eps);
  return pair_;
}

void ComposedState::HeadsAttentionHalf(const HeadsAttentionArgs& args, const NextHalf& next) {
  const TensorView input = DraftInput(args.beside_norm, args.norm, args.eps);
  const int64_t d = shape_.head_width, heads = shape_.heads, key_heads = shape_.key_heads;
  BT_CHECK(d > 0);
  ops_.linear(Fresh(), qkv_, input, args.qkv);
  const TensorView q = Heads(qkv_.columns(0, heads * d), heads);
  const TensorView keys = qkv_.columns(heads * d, key_heads * d);
  const TensorView values = qkv_.columns((heads + key_heads) * d, key_heads * d);
  ops_.rope(Fresh(), q, args.positions, args.rope);
  ops_.rope(Fresh(), Heads(keys, key_heads), args.positions, args.rope);
  ops_.kv_write(Fresh(), args.cache, keys, values, args.slots);
  ops_.head_attention(Fresh(), {.out = attention_,
                                .q = q,
                                .cache = args.cache,
                                .sequences = args.sequences,
                                .plan = args.plan,
                                .scale = args.scale,
                                .key_heads = shape_.key_heads});
  ops_.linear(Fresh(), delta_, attention_, args.o);
  Leave(next);
}

void ComposedState::Normalise(TensorView weight, float eps) {
  norm_ = weight;
  eps_ = eps;
  if (std::exchange(normed_by_, nullptr) == weight.data && added_) return;
  if (added_) return ops_.rms_norm(Fresh(), normed_, residual_, weight, eps);
  AddAndNorm(weight, eps);
  added_ = true;
}

void ComposedState::AddAndNorm(TensorView weight, float eps) {
  if (among_ranks()) {
    if (shape_.ranks->SumAddRmsNorm(Fresh(), normed_, residual_, delta_, weight, eps)) return;
    shape_.ranks->Sum(Fresh(), delta_);
  }
  ops_.add_rms_norm(Fresh(), normed_, residual_, delta_, weight, eps);
}

TensorView ComposedState::Residual() {
  if (added_) return residual_;
  AddAndNorm(norm_, eps_);
  added_ = true;
  normed_by_ = norm_.data;
  return residual_;
}

void ComposedState::Tap(TensorView out) {
  const TensorView residual = Residual();
  ops_.copy(Fresh(), out, residual);
}

void ComposedState::AttentionHalf(const AttentionHalfArgs& args, const NextHalf& next) {
  TensorView input = normed_;
  if (args.beside_norm) {
    input = DraftInput(args.beside_norm, args.norm, args.eps);
  } else {
    Normalise(args.norm, args.eps);
  }
  const int64_t q_lora = shape_.q_lora;
  ops_.linear(Fresh(), qkv_a_.columns(0, args.qkv_a.n), input, args.qkv_a);
  if (args.kv_a.n > 0) {
    ops_.linear(Fresh(), qkv_a_.columns(q_lora, args.kv_a.n), input, args.kv_a);
  }
  const TensorView low = qkv_a_.columns(0, q_lora);
  const TensorView latent = qkv_a_.columns(q_lora, shape_.latent);
  const TensorView key = qkv_a_.columns(q_lora + shape_.latent, shape_.rope);
  if (q_lora > 0) ops_.rms_norm(Fresh(), low, low, args.q_norm, args.latent_eps);
  // Only the latent is normalised; the shared key is rotated as it is.
  ops_.rms_norm(Fresh(), latent, latent, args.kv_norm, args.latent_eps);
  ops_.rope(Fresh(), Heads(key, 1), args.positions, args.rope);
  ops_.kv_write(Fresh(), args.cache, latent, key, args.slots);
  ops_.linear(Fresh(), q_, q_lora > 0 ? low : input, args.q);
  const TensorView rotated = Heads(q_, shape_.heads).columns(shape_.nope, shape_.rope);
  ops_.rope(Fresh(), rotated, args.positions, args.rope);
  Attend(args);
  ops_.linear(Fresh(), delta_, attention_, args.o);
  Leave(next);
}

MlaAttentionArgs ComposedState::AttentionArgs(const AttentionHalfArgs& args) const {
  return {.out = attention_,
          .q = Heads(q_, shape_.heads),
          .cache = args.cache,
          .sequences = args.sequences,
          .plan = args.plan,
          .kv_b = args.kv_b,
          .uk_t = args.uk_t,
          .scale = args.scale,
          .heads = shape_.group_heads,
          .nope = shape_.nope,
          .rope = shape_.rope,
          .value = shape_.value,
          .latent = shape_.latent,
          .lse = {}};
}

// Over context ranks queries and results travel, not keys: a query of a head is a third as long as
// its folded form, a result a quarter of a latent one. Long prefills send more than the latents of
// their context would be, but no rank ever holds the keys of others.
void ComposedState::Attend(const AttentionHalfArgs& args) {
  MlaAttentionArgs all = AttentionArgs(args);
  if (shape_.context_ranks == 1) return ops_.mla_attention(Fresh(), all);
  shape_.ranks->GatherHeads(Fresh(), group_q_, q_);
  all.q = Heads(group_q_, shape_.group_heads);
  all.out = group_attention_;
  all.lse = lse_;
  ops_.mla_attention(Fresh(), all);
  shape_.ranks->MergeHeads(Fresh(), attention_, group_attention_, lse_);
}

void ComposedState::Mlp(const PackedMatrix& first, const PackedMatrix& down) {
  const TensorView gate_and_up = gate_up(first.n);
  const TensorView gated(gated_, ops_.act, {shape_.tokens, down.k});
  ops_.linear(Fresh(), gate_and_up, normed_, first);
  ops_.swiglu(Fresh(), gated, gate_and_up);
  ops_.linear(Fresh(), delta_, gated, down);
}

void ComposedState::DenseHalf(const DenseHalfArgs& args, const NextHalf& next) {
  Normalise(args.norm, args.eps);
  Mlp(args.gate_up, args.down);
  Leave(next);
}

void ComposedState::Look(ExpertsTap* tap, ChosenExperts& chosen) {
  if (tap != nullptr) tap->Look(Fresh(), chosen);
}

void ComposedState::ExpertsHalf(const ExpertsHalfArgs& args, const NextHalf& next) {
  ChosenExperts chosen{.ids = ids_,
                       .weights = weights_,
                       .logits = router_,
                       .bias = args.router_bias,
                       .params = args.params};
  if (shape_.tokens == 0) return Experts(args, chosen);  // for rows of others
  Normalise(args.norm, args.eps);
  // The shared experts see every token; the routed ones add to their output.
  if (args.shared_gate_up.n > 0) {
    Mlp(args.shared_gate_up, args.shared_down);
  } else {
    ops_.clear(Fresh(), delta_);
  }
  ops_.linear(Fresh(), router_, normed_, args.router);
  ops_.route(Fresh(), ids_, weights_, router_, args.router_bias, args.params);
  Look(args.tap, chosen);
  if (!args.copies.empty()) ops_.choose_copies(Fresh(), chosen.ids, args.copies);
  Experts(args, chosen);
  Leave(next);
}

void ComposedState::Experts(const ExpertsHalfArgs& args, const ChosenExperts& chosen) {
  ExpertBankArgs bank{.out = delta_,
                      .x = normed_,
                      .ids = chosen.ids,
                      .weights = chosen.weights,
                      .gate_up = args.gate_up,
                      .down = args.down,
                      .slot_of = args.slot_of};
  if (shape_.exchange == nullptr) return ops_.expert_bank(Fresh(), bank);
  GatherRows(bank);
  ops_.clear(Fresh(), group_delta_);
  const int64_t rows = group_rows_.dim(0);
  const int64_t most = std::max(kGroupRowsAtOnce, *std::ranges::max_element(shape_.group_rows));
  for (int64_t at = 0; at < rows; at += most) {
    const int64_t count = std::min(most, rows - at);
    bank.out = group_delta_.rows(at, count);
    bank.x = group_rows_.rows(at, count);
    bank.ids = group_ids_.rows(at, count);
    bank.weights = group_weights_.rows(at, count);
    ops_.expert_bank(Fresh(), bank);
  }
  shape_.exchange->AddBack(Fresh(), delta_, group_delta_, shape_.group_rows);
}

void ComposedState::GatherRows(const ExpertBankArgs& own) {
  const ExpertExchange::Gathered gathered[] = {{.all = group_rows_, .own = own.x},
                                               {.all = group_ids_, .own = own.ids},
                                               {.all = group_weights_, .own = own.weights}};
  shape_.exchange->Gather(Fresh(), gathered, shape_.group_rows);
}

void ComposedState::Logits(const LogitsArgs& args) {
  // The last addition is made for the rows that are asked for; all ranks take part in the sum.
  if (!added_ && among_ranks()) shape_.ranks->Sum(Fresh(), delta_);
  const int64_t rows = args.rows.dim(0);
  if (rows == 0) return;
  BT_CHECK(args.logits.rank == 2 && args.logits.dim(0) == rows && args.logits.dtype == DType::kF32);
  const TensorView normed = normed_.rows(0, rows);
  ops_.gather_rows(Fresh(), last_residual_, residual_, args.rows);
  if (added_) {  // behind a tap: nothing is added, by the same operation, whose bits are the same
    ops_.clear(Fresh(), last_delta_);
  } else {
    ops_.gather_rows(Fresh(), last_delta_, delta_, args.rows);
  }
  ops_.add_rms_norm(Fresh(), normed, last_residual_, last_delta_, args.norm, args.eps);
  if (!among_ranks()) return ops_.linear(Fresh(), args.logits, normed, args.head);
  ops_.linear(Fresh(), part_logits_, normed, args.head);
  shape_.ranks->GatherColumns(Fresh(), args.logits, part_logits_, args.widths);
}

}  // namespace baltoro
