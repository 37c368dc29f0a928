#include "schedule/step_costs.h"

#include "schedule/planted_bug.h"

namespace baltoro {

namespace {

// Of a token and all before it.
double Keys(int32_t first_position, int32_t token_count) {
  const double count = token_count;
  return count * first_position + count * (count + 1) / 2;
}

}  // namespace

StepWork PromptWork(int32_t first_position, int32_t token_count) {
  return {.prompt_tokens = static_cast<double>(token_count),
          .prompt_keys = Keys(first_position, token_count)};
}

StepWork DecodeWork(int32_t first_position, int32_t token_count) {
  return {.decode_tokens = static_cast<double>(token_count),
          .decode_keys = Keys(first_position, token_count)};
}

StepWork EncodeWork(int32_t layers, int64_t patches, double pairs) {
  return {.picture_patches = static_cast<double>(layers) * static_cast<double>(patches),
          .picture_pairs = layers * pairs};
}

StepWork WorkOf(const StepPlan& plan) {
  StepWork sum;
  for (const PlannedEncode& encode : plan.encodes) {
    const StepWork work = EncodeWork(encode.layers, encode.patches, encode.pairs);
    sum.picture_patches += work.picture_patches;
    sum.picture_pairs += work.picture_pairs;
  }
  for (const PlannedSequence& planned : plan.sequences) {
    const double keys = Keys(planned.first_position, planned.token_count);
    // All its rows yield tokens: its last one, and drafts after it.
    const bool decodes = planned.sampled_rows == planned.token_count;
    (decodes ? sum.decode_tokens : sum.prompt_tokens) += planned.token_count;
    (decodes ? sum.decode_keys : sum.prompt_keys) += keys;
  }
  return sum;
}

int32_t StepCosts::PromptTokens(double left, int32_t first_position, int32_t most) const {
  if (Planted(PlantedBug::kChunkIgnoresContext)) first_position = 0;
  const auto fits = [&](int32_t count) { return Of(PromptWork(first_position, count)) <= left; };
  if (fits(most)) return most;
  int32_t low = 0;  // fits, or is nothing
  for (int32_t high = most; high - low > 1;) {
    const int32_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low;
}

}  // namespace baltoro
