#pragma once

// An engine without a model: the real scheduler and step loop, and tokens that are a function of
// the prompt and of the tokens before them. For tests of everything around an engine, and for
// measuring the door. Its vocabulary is that of the model folder, if one is given; it yields ids
// below 256 only, which are single bytes in the vocabularies of the family.

#include <memory>
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/step_loop.h"

namespace baltoro {

// The token that a stand-in yields after `prompt` and `output`.
TokenId StandInToken(std::span<const TokenId> prompt, std::span<const TokenId> output);

class StandInExecutor final : public Executor {
 public:
  StandInExecutor(int32_t max_num_seqs, double step_ms);
  Result<StepResult> Run(const StepPlan& plan) override;

 private:
  struct Slot {
    SamplingParams sampling;
    std::vector<TokenId> banned;
    int32_t min_tokens = 0;
    int32_t prompt_count = 0;
    std::vector<TokenId> tokens;
    uint64_t hash = 0;  // of tokens
  };
  std::vector<Slot> slots_;
  double step_ms_;
};

Result<std::unique_ptr<Engine>> StartStandInEngine(const EngineConfig& config, StepLoop::Sink sink);

}  // namespace baltoro
