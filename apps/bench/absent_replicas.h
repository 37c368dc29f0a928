#pragma once

// A rank of replicas that share experts, the others of which are not there: what their rows ask of
// this rank is there nevertheless, and only the way that it would come takes no time.

#include <cstdint>
#include <memory>
#include <span>
#include <utility>

#include "bench/echoed_slabs.h"
#include "ops/ops.h"
#include "ops/rank_ops.h"

namespace baltoro {

class AbsentReplicas final : public NoRanks, private ExpertExchange {
 public:
  // Of these operations' memory; they must outlive it. This replica is the first. `slabs`: what its
  // experts move with; null: they stay.
  AbsentReplicas(const OpsTable& ops, std::unique_ptr<EchoedSlabs> slabs)
      : ops_(ops), slabs_(std::move(slabs)) {}

  Status status() const override { return slabs_ == nullptr ? Status() : slabs_->status(); }
  ExpertExchange* experts() override { return this; }
  EchoedSlabs* slabs() override { return slabs_.get(); }

  // From now on rows and weights of the others are brought (this one's own), or stay what was
  // brought to their places before. In a step that is timed only those of this replica move.
  void BringRowsOfOthers(bool brings) { brings_ = brings; }

 private:
  // The tensor of experts that were chosen has behind this replica's rows in memory those
  // that were drawn for the others (StepRouting).
  void Gather(const OpContext& context,
              std::span<const Gathered> tensors,
              std::span<const int64_t> rows) override;
  void AddBack(const OpContext&, TensorView, TensorView, std::span<const int64_t>) override {}

  const OpsTable& ops_;
  const std::unique_ptr<EchoedSlabs> slabs_;
  bool brings_ = true;
};

}  // namespace baltoro
