#pragma once

// The halves of a layer as plain compositions of small operations: what the reference and the CPU
// run, and where a new backend starts. A backend that fuses derives from it and replaces the
// halves that it fuses.

#include <memory>

#include "ops/compose/small_ops.h"
#include "ops/hidden_state.h"

namespace baltoro {

class ComposedState : public HiddenState {
 public:
  // `ops` must outlive the state.
  ComposedState(const SmallOps& ops, const OpContext& context, Arena& arena, const StepShape& shape)
      : ComposedState(ops, context, arena, shape, DType::kF32) {}

  void Embed(TensorView table, TensorView ids, int64_t first) override;
  void Override(TensorView values, TensorView rows) override;
  void TakeFeatures(const FeatureArgs& args) override;
  void AttentionHalf(const AttentionHalfArgs& args, const NextHalf& next) override;
  void HeadsAttentionHalf(const HeadsAttentionArgs& args, const NextHalf& next) override;
  void DenseHalf(const DenseHalfArgs& args, const NextHalf& next) override;
  void ExpertsHalf(const ExpertsHalfArgs& args, const NextHalf& next) override;
  TensorView Residual() override;
  void Tap(TensorView out) override;
  void Logits(const LogitsArgs& args) override;

 protected:
  // `part`: of what a half adds to the residual.
  ComposedState(const SmallOps& ops,
                const OpContext& context,
                Arena& arena,
                const StepShape& shape,
                DType part);

  // A context whose scratch is empty.
  virtual OpContext Fresh();
  // norm(residual) into `normed`, with what is still to be added to it added before.
  void Normalise(TensorView weight, float eps);
  // residual += the sum over ranks of `delta`; normed = norm(residual).
  virtual void AddAndNorm(TensorView weight, float eps);
  // What the projections of a draft's layer read.
  TensorView DraftInput(TensorView beside_norm, TensorView norm, float eps);
  // From queries and cache to `attention`, with the other context ranks where there are any.
  void Attend(const AttentionHalfArgs& args);
  MlaAttentionArgs AttentionArgs(const AttentionHalfArgs& args) const;
  // delta = down(swiglu(gate_up(normed))).
  void Mlp(const PackedMatrix& gate_up, const PackedMatrix& down);
  void Look(ExpertsTap* tap, ChosenExperts& chosen);
  // delta += what this rank's experts find; where replicas share them, for the rows of all.
  void Experts(const ExpertsHalfArgs& args, const ChosenExperts& chosen);
  // Rows of this replica, with the experts that they chose, come to those of all.
  virtual void GatherRows(const ExpertBankArgs& own);
  // What a half has found lies in `delta`, to be added.
  void Leave(const NextHalf& next) {
    added_ = false;
    if (!next.norm) return;
    norm_ = next.norm;
    eps_ = next.eps;
  }

  bool among_ranks() const { return shape_.tensor_ranks > 1; }
  TensorView gate_up(int64_t width) const;
  TensorView Heads(const TensorView& x, int64_t heads) const;

  const SmallOps& ops_;
  const OpContext context_;
  const StepShape shape_;

  TensorView residual_;   // [T, H] f32
  TensorView delta_;      // [T, H] part
  TensorView normed_;     // [T, H] act
  TensorView qkv_a_;      // [T, q_lora + R + P] act
  TensorView q_;          // [T, h (N + P)] act
  TensorView attention_;  // [T, h V] act
  TensorView router_;     // [T, E] f32
  TensorView ids_;        // [T, k] i32
  TensorView weights_;    // [T, k] f32
  // Of replicas that share experts. G: rows of all.
  TensorView group_rows_;     // [G, H] act
  TensorView group_ids_;      // [G, k] i32
  TensorView group_weights_;  // [G, k] f32
  bool added_ = true;         // whether `delta` is in the residual

 private:
  void* gate_up_ = nullptr;                // [T, 2 I] act, of the widest MLP
  void* gated_ = nullptr;                  // [T, I] act
  TensorView last_residual_, last_delta_;  // [logits rows, H] f32
  // Of a draft model.
  TensorView beside_;    // [T, H] f32
  TensorView features_;  // [T, parts H] act
  TensorView pair_;      // [T, 2 H] act
  TensorView qkv_;       // [T, (h + 2 g) d] act
  // Of ranks. g: heads of the decode-context group.
  TensorView group_q_;          // [T, g (N + P)] act
  TensorView group_attention_;  // [T, g V] act
  TensorView lse_;              // [T, g] f32
  TensorView part_logits_;      // [logits rows, this rank's vocabulary] f32
  TensorView group_delta_;      // [G, H] f32, of replicas that share experts
  // There is no addition without a norm: that of the half behind, or at the end of a stage, where
  // nobody reads it, that of the last.
  TensorView norm_;
  float eps_ = 0;
  const void* normed_by_ = nullptr;  // the weight of a norm that Residual() has made already
};

}  // namespace baltoro
