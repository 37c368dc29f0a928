#include <string>

#include "base/check.h"
#include "model/k2_step.h"

// The computation of a step: from tokens through the layers to logits.

namespace baltoro {

AttentionHalfArgs K2Model::AttentionOf(int32_t layer,
                                       const Inputs& in,
                                       const KvLayerView& cache) const {
  const LayerWeights& w = weights_.layers[layer];
  return {.norm = w.attention_norm,
          .eps = static_cast<float>(config_.norm_eps),
          .beside_norm = w.beside_norm,
          .qkv_a = w.qkv_a,
          .kv_a = w.kv_a,
          .q_norm = w.q_norm,
          .kv_norm = w.kv_norm,
          .latent_eps = static_cast<float>(config_.latent_norm_eps),
          .q = w.q,
          .kv_b = w.kv_b,
          .uk_t = w.uk_t,
          .o = w.o,
          .positions = in.positions,
          .slots = in.slots,
          .rope = rope_table_,
          .cache = cache,
          .sequences = in.sequences,
          .plan = in.attention_plan,
          .scale = softmax_scale_};
}

HeadsAttentionArgs K2Model::HeadsOf(int32_t layer,
                                    const Inputs& in,
                                    const KvLayerView& cache) const {
  const LayerWeights& w = weights_.layers[layer];
  return {.norm = w.attention_norm,
          .beside_norm = w.beside_norm,
          .eps = static_cast<float>(config_.norm_eps),
          .qkv = w.qkv_a,
          .o = w.o,
          .positions = in.positions,
          .slots = in.slots,
          .rope = rope_table_,
          .cache = cache,
          .sequences = in.sequences,
          .plan = in.attention_plan,
          .scale = softmax_scale_};
}

ExpertsHalfArgs K2Model::ExpertsOf(int32_t layer) const {
  const LayerWeights& w = weights_.layers[layer];
  RouterParams router = config_.router;
  router.group_by_top2 = static_cast<bool>(w.router_bias);
  return {.norm = w.mlp_norm,
          .eps = static_cast<float>(config_.norm_eps),
          .router = w.router,
          .router_bias = w.router_bias,
          .params = router,
          .gate_up = w.experts_gate_up,
          .down = w.experts_down,
          .slot_of = expert_slots_,
          .copies = balancer_ == nullptr ? ExpertCopies() : balancer_->CopiesOf(layer),
          .shared_gate_up = w.mlp.gate_up,
          .shared_down = w.mlp.down,
          .tap = ops_.tap};
}

void K2Model::Compute(const Inputs& in,
                      std::span<const int32_t> layers,
                      std::span<const KvLayerView> cache,
                      HiddenState& hidden,
                      TensorView logits) {
  const auto eps = static_cast<float>(config_.norm_eps);
  if (share_.first_stage()) {
    hidden.Embed(weights_.embedding, in.tokens, share_.vocab(config_).begin);
    int64_t overridden = 0;
    for (const TensorView& piece : in.overrides) {
      hidden.Override(piece, in.override_rows.rows(overridden, piece.dim(0)));
      overridden += piece.dim(0);
    }
    if (config_.draft) {
      hidden.TakeFeatures({.parts = in.features,
                           .rows = in.feature_rows,
                           .fc = in.own_features ? PackedMatrix() : weights_.fc});
    }
  } else {
    others().ReceiveFromStageBefore(Scratch(), hidden.Residual());
  }
  const auto first = static_cast<int32_t>(share_.layers(config_).begin);
  AttentionHalfArgs attention = AttentionOf(layers[0], in, cache[0]);
  size_t tap = 0;
  for (; tap < in.tap_layers.size() && in.tap_layers[tap] < first; ++tap) {
    others().ReceiveFromStageBefore(Scratch(), in.taps[tap]);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const bool is_last = i + 1 == layers.size();
    if (tell_) tell_("layer " + std::to_string(first + layers[i]));
    const AttentionHalfArgs ahead =
        is_last ? AttentionHalfArgs() : AttentionOf(layers[i + 1], in, cache[i + 1]);
    const NextHalf next = is_last ? NextHalf() : NextHalf::Of(ahead);
    if (config_.is_moe(first + layers[i])) {
      const ExpertsHalfArgs experts = ExpertsOf(layers[i]);
      hidden.AttentionHalf(attention, NextHalf::Of(experts));
      hidden.ExpertsHalf(experts, next);
    } else {
      const LayerWeights& w = weights_.layers[layers[i]];
      const DenseHalfArgs dense{
          .norm = w.mlp_norm, .eps = eps, .gate_up = w.mlp.gate_up, .down = w.mlp.down};
      if (config_.has_heads()) {
        hidden.HeadsAttentionHalf(HeadsOf(layers[i], in, cache[i]), NextHalf::Of(dense));
      } else {
        hidden.AttentionHalf(attention, NextHalf::Of(dense));
      }
      hidden.DenseHalf(dense, next);
    }
    if (tap < in.tap_layers.size() && in.tap_layers[tap] == first + layers[i]) {
      hidden.Tap(in.taps[tap++]);
    }
    attention = ahead;
  }
  if (tell_) tell_("behind the layers");
  if (!share_.last_stage()) {
    others().SendToNextStage(Scratch(), hidden.Residual());
    for (size_t i = 0; i < tap; ++i) others().SendToNextStage(Scratch(), in.taps[i]);
    return;
  }
  const int64_t vocab = config_.head_vocab();
  BT_CHECK(logits.rank == 2 && logits.dim(1) == vocab && logits.dtype == DType::kF32);
  std::vector<int64_t> widths;
  for (int32_t rank = 0; rank < share_.layout.tensor; ++rank) {
    widths.push_back(EvenShare(vocab, share_.layout.tensor, rank).size());
  }
  hidden.Logits({.logits = logits,
                 .rows = in.logits_rows,
                 .norm = weights_.final_norm,
                 .eps = eps,
                 .head = weights_.lm_head,
                 .widths = widths});
  if (in.picks) ops_.pick(Scratch(), in.picks, logits, in.names);
}

}  // namespace baltoro
