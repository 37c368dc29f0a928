#pragma once

// An engine without a model: the real scheduler and step loop, and tokens that are a function of
// the prompt and of the tokens before them. For tests of everything around an engine, and for
// measuring the door. Its vocabulary is that of the model folder, if one is given; it yields ids
// below 256 only, which are single bytes in the vocabularies of the family, but for requests with a
// constraint: these get any token that it allows. It takes pictures, of the sizes that the family's
// models do, and looks at none.

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/step_masks.h"

namespace baltoro {

// The token that a stand-in yields after `prompt` and `output`.
TokenId StandInToken(std::span<const TokenId> prompt, std::span<const TokenId> output);

class StandInRunner final : public PlanRunner {
 public:
  // `constraints` null: no request has one.
  StandInRunner(int32_t max_num_seqs,
                double step_ms,
                int64_t vocab = 0,
                std::shared_ptr<const ConstraintTable> constraints = nullptr);
  Result<StepResult> Run(const StepPlan& plan) override;

 private:
  struct Slot {
    SamplingParams sampling;
    std::vector<TokenId> banned;
    int32_t min_tokens = 0;
    int32_t prompt_count = 0;
    std::vector<TokenId> tokens;
    uint64_t hash = 0;  // of tokens
    bool constrained = false, over = false;
    std::vector<uint32_t> mask;  // of allowed_token_ids; empty: all
  };
  // The next token, or how the request ends.
  TokenId Next(SlotId id, SequenceResult& one);
  std::vector<Slot> slots_;
  double step_ms_;
  const size_t mask_words_;
  std::unique_ptr<StepMasks> masks_;  // null: no request is constrained
};

// kInvalidArgument for what a stand-in does not do.
Status CheckStandIn(const EngineConfig& config);

Result<std::unique_ptr<Engine>> StartStandInEngine(const EngineConfig& config,
                                                   EventSink sink,
                                                   const ConstraintFactoryMaker& constraints);

}  // namespace baltoro
