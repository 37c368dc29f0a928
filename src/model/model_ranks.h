#pragma once

// One rank of a model: its share, and its way to the others.

#include <memory>
#include <utility>

#include "base/status.h"
#include "comm/link.h"
#include "model/weight_slice.h"
#include "ops/rank_ops.h"

namespace baltoro {

// What ranks of this model on GPUs have in common, but for how they find each other.
GpuRankArgs RankArgsOf(const K2Config& config,
                       const ParallelLayout& layout,
                       int32_t rank,
                       int64_t tokens_max,  // of a step
                       DType act);

class ModelRanks {
 public:
  ModelRanks(const RankShare& share, std::unique_ptr<RankOps> ops)
      : share_(share), own_(std::move(ops)), ops_(*own_) {}
  // Of another model that lies on the tensor ranks of this rank's stage, and computes between the
  // steps of this one: its exchanges are those of `stage`, which must outlive this.
  static std::unique_ptr<ModelRanks> Beside(ModelRanks& stage);
  // On a CPU: the rank of `link`, which must outlive this.
  static Result<std::unique_ptr<ModelRanks>> Join(Link* link, const ParallelLayout& layout);

  const RankShare& share() const { return share_; }
  RankOps& ops() { return ops_; }
  Status status() const { return ops_.status(); }

 private:
  ModelRanks(const RankShare& share, RankOps& ops) : share_(share), ops_(ops) {}

  const RankShare share_;
  const std::unique_ptr<RankOps> own_;  // null: another's
  RankOps& ops_;
};

}  // namespace baltoro
