#pragma once

// The halves of a layer on a GPU: the plain composition (ops/compose), with what can share a launch
// in one launch. Between the halves a norm may have been begun by the half ahead of it, which adds
// its result to the residual and leaves rows and squares (BegunNorm) for the half behind.

#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "ops/compose/composed_state.h"
#include "ops/cuda/fused_args.h"

namespace baltoro::cuda {

const SmallOps& CudaSmallOps();

class LayerState : public ComposedState {
 public:
  LayerState(const OpContext& context, Arena& arena, const StepShape& shape);

  void Explain(std::function<void(const std::string&)> tell) override { tell_ = std::move(tell); }
  void AttentionHalf(const AttentionHalfArgs& args, const NextHalf& next) override;
  void DenseHalf(const DenseHalfArgs& args, const NextHalf& next) override;
  void ExpertsHalf(const ExpertsHalfArgs& args, const NextHalf& next) override;

 protected:
  OpContext Fresh() override;
  void GatherRows(const baltoro::ExpertBankArgs& own) override;

 private:
  AttentionInputArgs InputsOf(const AttentionHalfArgs& args) const;
  ExpertBankArgs BankOf(const ExpertsHalfArgs& args) const;
  // Replicas share the experts: the shared ones see the rows of this replica, those of the bank the
  // rows of all.
  void ExpertsOfGroup(const ExpertsHalfArgs& args, const NextHalf& next);
  // The first product of the shared experts, if there are any, and the choice, of which `chooses`
  // false leaves out the end.
  void ChooseExperts(const ExpertsHalfArgs& args, const BegunNorm* before, bool chooses);
  BegunNorm NormOf(TensorView weight, float eps) const;
  // The norm of the half behind, if what makes the residual can begin it and what reads its rows
  // takes them so.
  std::optional<BegunNorm> NormBehind(const AttentionHalfArgs& args, const NextHalf& next) const;
  std::optional<BegunNorm> NormBehind(const ExpertsHalfArgs& args, const NextHalf& next) const;
  // The result is in the residual, with the norm behind begun, or still to be added.
  void End(const std::optional<BegunNorm>& behind, const NextHalf& next);

  TensorView unscaled_, squares_;  // BegunNorm::rows and squares; none: nothing is joined
  TensorView in_order_;            // OrderedRows of normed_; none: nothing takes them
  RoundedRows rounded_;            // of normed_; without memory: nothing takes them
  RoundedRows gathered_;           // of the rows of all replicas; where they came as codes
  // Codes with scales of those rows, where experts may read none, and so rows are made of them.
  void* codes_ = nullptr;
  OrderedRows ordered_;
  Beside beside_;
  std::function<void(const std::string&)> tell_;
  bool orders_ = false;             // norm and bank are given `ordered_`
  std::optional<BegunNorm> ahead_;  // begun by the half before
};

}  // namespace baltoro::cuda
