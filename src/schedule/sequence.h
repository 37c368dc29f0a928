#pragma once

// A request as the scheduler sees it: its tokens, its blocks, and how far it has come.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "cache/block_id.h"
#include "cache/keyed_hash.h"
#include "request/request.h"
#include "schedule/fair_turns.h"
#include "schedule/picture_store.h"
#include "schedule/planted_bug.h"
#include "schedule/step_plan.h"

namespace baltoro {

enum class SequenceState : uint8_t {
  kWaiting,   // no slot, no blocks
  kRunning,   // has a slot and blocks
  kEvicting,  // preempted; keeps slot and blocks until its steps in flight are committed
  kEnding,    // its final event is out; keeps slot and blocks likewise
};

struct Sequence {
  Request request;
  uint64_t arrival = 0;
  FairTurns::Span turn;  // among the requests of all owners
  SequenceState state = SequenceState::kWaiting;

  std::vector<TokenId> tokens;  // prompt, then output
  std::vector<TokenId> drafts;  // proposed continuation, to be verified by the next step
  int32_t prompt_count = 0;
  bool constrained = false;
  // Most tokens that it may ever have, prompt included.
  int32_t tokens_max = 0;

  // Positions below `planned` are computed by the plans made so far, those below `computed` by the
  // plans committed.
  int32_t planned = 0;
  int32_t computed = 0;
  int32_t in_flight = 0;  // plans made and not committed
  // Tokens that plans in flight will yield; unknown (and at least one) while drafts are verified.
  int32_t tokens_in_flight = 0;
  int32_t ready_until = std::numeric_limits<int32_t>::max();  // ReadyUntil(), for this plan
  bool drafts_in_flight = false;  // some are verified, or will be brought, by a plan in flight

  struct Range {
    size_t begin = 0, end = 0;
    bool empty() const { return begin == end; }
  };
  Range pictures_held;                     // of its request's pictures, in the memory of pictures
  std::vector<PictureName> picture_names;  // of its request's pictures, there

  SlotId slot{-1};
  std::vector<BlockId> blocks;
  std::vector<Hash128> names;  // of the full blocks of `tokens`, as far as needed
  int32_t blocks_sent = 0;     // of `blocks`, to the ranks
  int32_t blocks_named = 0;    // of `blocks`, offered to the prefix cache

  int32_t preemptions = 0;
  bool admitted_before = false;
  int32_t cached_tokens = 0;
  std::vector<TokenLogprobs> prompt_logprobs;  // gathered until the first token is out
  bool prompt_logprobs_sent = false;

  int32_t known() const { return static_cast<int32_t>(tokens.size()); }
  // What it was charged for when it came: nobody knows how long its answer will be.
  static constexpr int64_t kUsualOutput = 256;
  int64_t expected_tokens() const {
    return prompt_count + std::min<int64_t>(request.stop.max_tokens, kUsualOutput);
  }
  int32_t output_count() const { return known() - prompt_count; }
  // Eight times is enough: from then on it goes first, and owns all blocks that it may ever need.
  static constexpr int32_t kPreemptionsMax = 8;
  bool is_protected() const {
    return preemptions >= kPreemptionsMax && !Planted(PlantedBug::kUnboundedPreemption);
  }
  bool wants_prompt_logprobs() const {
    return request.sampling.prompt_logprobs >= 0 && !prompt_logprobs_sent;
  }
  // Tokens that the next plan could compute: known ones, and one that is being sampled.
  int32_t available() const { return known() + tokens_in_flight - planned; }
};

}  // namespace baltoro
