#pragma once

// Neighbours of a rank whose experts move, where there are none: they lie on the rank's own GPU and
// send back what they get. So a round asks of the rank's memory and multiprocessors what it would
// ask, and only the links between GPUs, and ranks that come late, take no time.

#include <cstdint>
#include <memory>
#include <span>

#include "base/status.h"
#include "model/k2_config.h"
#include "ops/ops.h"
#include "ops/rank_ops.h"

namespace baltoro {

class EchoedSlabs final : public SlabExchange {
 public:
  // On a GPU by the kernel that ranks trade with, else by copies. `ops` must outlive this.
  static Result<std::unique_ptr<EchoedSlabs>> Create(const OpsTable& ops, const K2Config& config);

  // Rows of this rank stand for those of all: the same loads but for a factor.
  void AddUp(std::span<float>) override {}
  // As many go out as come in: where a round has fewer one way, what goes the other way returns to
  // its place.
  void Trade(std::span<const Out> out, std::span<const In> in) override;

  // The most slabs, out and in together, that one Trade had since this was asked last.
  int64_t TakeTraded();
  Status status() const { return ranks_ == nullptr ? Status() : ranks_->status(); }

 private:
  explicit EchoedSlabs(std::unique_ptr<RankOps> ranks) : ranks_(std::move(ranks)) {}

  const std::unique_ptr<RankOps> ranks_;  // null: on a CPU
  int64_t traded_ = 0;                    // slabs out and in of one Trade
};

}  // namespace baltoro
