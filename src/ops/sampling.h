#pragma once

// From a row of logits to a token.

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace baltoro {

// What one row of logits needs to become a token, in this order:
//   1. log-probabilities are those of the raw logits;
//   2. ids outside `mask` and `banned` ids are excluded, logit_bias is added;
//   3. repetition_penalty divides a positive logit and multiplies a negative one of every id in
//      prompt or output; frequency_penalty times its count and presence_penalty are subtracted for
//      ids in the output;
//   4. temperature below 1e-5: the highest logit, of equal ones the lowest id;
//   5. else weights w = exp((logit - highest) / temperature); kept are those with w >= min_p, of
//      these the top_k heaviest, of these the fewest heaviest whose sum is at least top_p of theirs
//      (of equal logits the lower id is the heavier);
//   6. the first kept id, in rising order of ids, at which the running sum of kept weights exceeds
//      SamplingUniform(seed, index) times their total (sampling_rng.h).
// Rows that exclude every id, or with a non-finite logit, give token -1. Sums run in f64; weights
// may be rounded to f32.
struct SampleRow {
  int32_t logits_row = 0;
  float temperature = 1, top_p = 1, min_p = 0;
  int32_t top_k = 0;  // 0: all
  float presence_penalty = 0, frequency_penalty = 0, repetition_penalty = 1;
  uint64_t seed = 0;
  uint64_t index =
      0;  // of the token in the output: the draw depends on (seed, index) and the row alone
  std::span<const int32_t> prompt = {};  // for repetition_penalty
  std::span<const int32_t> output = {};  // for all three
  std::span<const std::pair<int32_t, float>> logit_bias = {};
  std::span<const int32_t> banned = {};  // ids that must not come (min_tokens)
  std::span<const uint32_t> mask = {};   // one bit a token, set: allowed; empty: all
  int32_t top_logprobs = -1;             // of the raw logits; -1: none
  int32_t given = -1;  // >= 0: nothing is drawn, the token is this one (log-probabilities of a
                       // prompt)
};

struct SampledLogprob {
  int32_t id = 0;
  float logprob = 0;
  int32_t rank = 0;
};

struct SampleResult {
  int32_t token = -1;
  std::vector<SampledLogprob> logprobs;  // the token, then the top ones; empty unless asked for
};

}  // namespace baltoro
