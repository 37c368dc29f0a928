#pragma once

// What steps cost, in a unit of the caller's, and what one may cost: by this a plan cuts prompts,
// so that a long one does not hold up those who wait for their next token. Plain numbers: the same
// ones give the same plan.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "cache/block_id.h"
#include "schedule/step_plan.h"

namespace baltoro {

// How much of what costs a step has. A key is one position that one token attends to.
struct StepWork {
  double prompt_tokens = 0, prompt_keys = 0;  // of prompts, and of what is computed again
  double decode_tokens = 0, decode_keys = 0;  // of sequences that decode
  // Of pictures: patches, and pairs of patches of one picture, each times the layers.
  double picture_patches = 0, picture_pairs = 0;
};

StepWork PromptWork(int32_t first_position, int32_t token_count);
StepWork DecodeWork(int32_t first_position, int32_t token_count);
StepWork EncodeWork(int32_t layers, int64_t patches, double pairs);
StepWork WorkOf(const StepPlan& plan);

struct StepCosts {
  // Of a step while some sequence decodes, and while none does. Sequences that decode are computed
  // whatever they cost; prompts have what they leave.
  double limit = std::numeric_limits<double>::infinity();
  double limit_alone = std::numeric_limits<double>::infinity();

  double fixed = 0;  // of any step
  double prompt_token = 0, prompt_key = 0;
  double decode_token = 0, decode_key = 0;
  double picture_patch = 0, picture_pair = 0;  // in one layer

  // A prompt that is computed at all gets as many tokens, beyond the limit if need be; and one
  // prompt of each plan is.
  static constexpr int32_t kChunkMin = kBlockTokens;

  // Prompts may cost at least this share of the limit, or of what the step costs without them if
  // that is more: where any step takes as long as the limit, they would else hardly go on.
  static constexpr double kPromptShare = 0.25;

  // What prompts may cost in a step whose other parts, `fixed` among them, cost `rest`.
  double PromptLimit(double step_limit, double rest) const {
    return std::max(step_limit - rest, kPromptShare * std::max(step_limit, rest));
  }
  bool unlimited() const { return limit == std::numeric_limits<double>::infinity(); }
  // Without `fixed`.
  double Of(const StepWork& work) const {
    return prompt_token * work.prompt_tokens + prompt_key * work.prompt_keys +
           decode_token * work.decode_tokens + decode_key * work.decode_keys +
           picture_patch * work.picture_patches + picture_pair * work.picture_pairs;
  }
  // The most tokens of a prompt, from this position on, that cost no more than `left`; at most
  // `most`.
  int32_t PromptTokens(double left, int32_t first_position, int32_t most) const;
};

}  // namespace baltoro
