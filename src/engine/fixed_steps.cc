#include "engine/fixed_steps.h"

#include <algorithm>

#include "cache/block_id.h"

namespace baltoro {
namespace {

// A prefix is found in whole chunks: larger ones are computed faster and found more rarely.
constexpr int32_t kPromptChunk = 512;
// A part takes as long to begin and to end as two blocks of keys; one long request alone has no
// more multiprocessors than parts.
constexpr int32_t kKeyPartBlocks = 16;
// Of all rows of a step together: each takes memory, 128 KiB for 64 heads.
constexpr int64_t kKeyPartsMax = 2048;

}  // namespace

FixedSteps ChooseFixedSteps(int32_t max_num_batched_tokens, int64_t max_model_len) {
  FixedSteps fixed;
  fixed.prompt_chunk = std::min(kPromptChunk, max_num_batched_tokens);
  // Whole blocks, of which prefixes are made.
  if (fixed.prompt_chunk > kBlockTokens) {
    fixed.prompt_chunk = fixed.prompt_chunk / kBlockTokens * kBlockTokens;
  }
  fixed.decode_rows = kFixedDecodeRows;
  const int64_t blocks = kFixedDecodeRows * int64_t{BlocksFor(max_model_len)};
  fixed.key_part_blocks = static_cast<int32_t>(
      std::max<int64_t>(kKeyPartBlocks, (blocks + kKeyPartsMax - 1) / kKeyPartsMax));
  return fixed;
}

int64_t KeyPartsMax(const FixedSteps& fixed, int64_t max_model_len) {
  if (fixed.key_part_blocks == 0) return 0;
  // What does not fill a part is one, of each row.
  return fixed.decode_rows * int64_t{BlocksFor(max_model_len)} / fixed.key_part_blocks +
         fixed.decode_rows;
}

int32_t PassesMax(const FixedSteps& fixed, int32_t max_num_batched_tokens) {
  if (fixed.prompt_chunk == 0) return 1;
  const int32_t least = std::min(fixed.prompt_chunk, fixed.decode_rows);
  return (max_num_batched_tokens + least - 1) / least + 1;
}

}  // namespace baltoro
