#pragma once

// What --deterministic comes to: which tokens are computed together, where the operations' bits
// depend on the number of rows.

#include <cstdint>

namespace baltoro {

// Of ChooseFixedSteps: more rows serve many requests better, fewer rows a single one.
inline constexpr int32_t kFixedDecodeRows = 32;

struct FixedSteps {
  // 0: steps are as large as suits; a row is the same in all of them. Else as in SchedulerConfig.
  int32_t prompt_chunk = 0;
  // Rows of a step that computes sampled tokens, filled up with rows that nobody reads.
  int32_t decode_rows = 0;
  // Blocks of 64 keys after which attention cuts the context of a sampled token.
  int32_t key_part_blocks = 0;
};

// On a GPU. Depends on as few settings as possible, since other sizes give other bits: the chunk on
// max_num_batched_tokens below 512, the parts of the context on a max_model_len above 65,536.
FixedSteps ChooseFixedSteps(int32_t max_num_batched_tokens, int64_t max_model_len);

// Into how many parts attention cuts the keys of a step at most.
int64_t KeyPartsMax(const FixedSteps& fixed, int64_t max_model_len);

// How many times as long as its largest pass a plan of so many tokens may take.
int32_t PassesMax(const FixedSteps& fixed, int32_t max_num_batched_tokens);

}  // namespace baltoro
