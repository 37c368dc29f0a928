#pragma once

// What can be said of the flags of `serve` before a model is looked at. `serve` and `plan` ask the
// same questions, so a plan is of flags that `serve` takes.

#include <cstdint>

#include "base/status.h"
#include "flags/parse.h"

namespace baltoro {

// kInvalidArgument: flags that need others, or exclude each other, with a sentence.
Status CheckServeFlags(const ParsedFlags& flags);

struct StepSizes {
  int32_t max_num_seqs = 256;
  int32_t max_num_batched_tokens = 2048;
};
// Of what was given, 0 where nothing was: where one of the two is given the other follows it.
StepSizes ChooseStepSizes(int64_t max_num_seqs, int64_t max_num_batched_tokens);

}  // namespace baltoro
