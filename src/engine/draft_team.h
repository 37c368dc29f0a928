#pragma once

// The tensor ranks of the last stage, where they share a draft model: its part on each, and what
// the rank that samples tells the others once it knows which tokens a step came to.

#include <memory>
#include <span>

#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link.h"
#include "engine/draft_model.h"
#include "model/model_ranks.h"

namespace baltoro {

class DraftTeam {
 public:
  // `target` is this rank of the model that is drafted for, of its last stage. All ranks of that
  // stage call it at the same time; it and `link` must outlive the team.
  static Result<std::unique_ptr<DraftTeam>> Join(Link* link, ModelRanks* target);

  // Of the draft model.
  ModelRanks& ranks() { return *ranks_; }
  // Behind each batch of the target, on all ranks, with its sequences: what of them follows from
  // the tokens that were sampled (valid_rows, next, wanted) becomes what the rank that samples has
  // there. An error is that of the link, and names the rank that caused it.
  Status Agree(std::span<DraftSequence> sequences);

 private:
  DraftTeam(std::unique_ptr<ModelRanks> ranks, std::unique_ptr<Communicator> group)
      : ranks_(std::move(ranks)), group_(std::move(group)) {}

  const std::unique_ptr<ModelRanks> ranks_;
  const std::unique_ptr<Communicator> group_;
};

}  // namespace baltoro
