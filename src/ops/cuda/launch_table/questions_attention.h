#pragma once

// The questions about attention, as plain data: for who asks a card what it launches, and for who
// holds choices made without one to the same table.

#include <algorithm>
#include <string>
#include <vector>

#include "ops/cuda/launch_table/family.h"
#include "ops/cuda/launch_table/forms.h"
#include "ops/cuda/launch_table/table.h"
#include "ops/ops.h"

namespace baltoro::cuda::launch_table {

struct Keys {
  const char* name;
  int32_t queries = 1;      // tokens of a sequence; 0: all rows are of one
  int32_t before = 0;       // keys that are cached already
  int32_t part_blocks = 0;  // as in AttentionPlanArgs
  bool recorded = false;    // with room for more blocks than there are, as a recorded step
};

// Launches of decode do not depend on the number of keys: few make plans cheap.
inline constexpr Keys kKeys[] = {
    {.name = "1 query token each, recorded", .before = 1023, .recorded = true},
    {.name = "1 query token each", .before = 1023},
    {.name = "1 query token each, parts of 4 blocks", .before = 1023, .part_blocks = 4},
    {.name = "4 query tokens each", .queries = 4, .before = 1020},
    {.name = "8 query tokens each", .queries = 8, .before = 1016},
    {.name = "one prompt", .queries = 0},
    {.name = "one prompt behind 32768 keys", .queries = 0, .before = 32768},
    {.name = "prompts of 512", .queries = 512},
};

inline std::string HeadsAndCache(int64_t heads, const CacheForm& cache) {
  return std::to_string(heads) + " heads, cache " + cache.name;
}

struct AttentionCase {
  std::string name;
  int64_t heads;
  CacheForm cache;
  Keys keys;
  bool sums;  // for the merge over ranks that hold different keys: one kind of step shows it
  RowRange range;
};

inline std::vector<AttentionCase> AttentionCases() {
  // Plans are made anew for each number of rows, so fewer are asked for.
  constexpr int64_t kEachUpTo = 64;
  std::vector<AttentionCase> cases;
  for (const Rank& r : Ranks()) {
    for (const CacheForm& cache : kCaches) {
      for (const Keys& keys : kKeys) {
        for (const bool sums : {false, true}) {
          if (sums && !keys.recorded) continue;
          const RowRange range{.most = keys.queries == 1 ? 4096 : 8192, .every = kEachUpTo};
          cases.push_back({"attention, " + HeadsAndCache(r.heads, cache) + ", " + keys.name +
                               (sums ? ", with sums" : ""),
                           r.heads, cache, keys, sums, range});
        }
      }
    }
  }
  return cases;
}

// A step of so many rows, in host memory alone.
struct StepOfSequences {
  StepOfSequences(int64_t rows, KvForm form, int64_t heads, const Keys& keys) {
    const auto tokens = static_cast<int32_t>(rows);
    const int32_t each = keys.queries > 0 ? keys.queries : tokens;
    blocks.assign(static_cast<size_t>((keys.before + each + 63) / 64), 0);
    for (int32_t at = 0; at < tokens; at += each) {
      const int32_t count = std::min(each, tokens - at);
      sequences.push_back({.query_begin = at,
                           .query_count = count,
                           .first_position = keys.before,
                           .blocks = blocks,
                           .block_positions = {},
                           .key_count = keys.before + count});
    }
    args = {.sequences = sequences,
            .tokens = rows,
            .form = form,
            .heads = static_cast<int32_t>(heads),
            .nope = kNope,
            .rope = kRope,
            .value = kValue,
            .latent = kLatent,
            .blocks_max = keys.recorded ? std::ssize(blocks) : 0,
            .part_blocks = keys.part_blocks};
  }
  StepOfSequences(const StepOfSequences&) = delete;
  StepOfSequences& operator=(const StepOfSequences&) = delete;

  std::vector<int32_t> blocks;
  std::vector<AttentionSequence> sequences;
  AttentionPlanArgs args;
};

// The attention half of a layer, decoding as kKeys[0].
struct AttentionHalfCase {
  std::string name;
  Rank rank;
  product_test::FormCase form;
  CacheForm cache;
  bool norm_ahead, norm_behind;
  RowRange range = {.most = 32};
};

inline std::vector<AttentionHalfCase> AttentionHalfCases() {
  std::vector<AttentionHalfCase> cases;
  for (const Rank& r : Ranks()) {
    if (r.q_lora == 0) continue;
    for (const product_test::FormCase& form : product_test::kForms) {
      for (const CacheForm& cache : kCaches) {
        for (const int norms : {0, 1, 2, 3}) {
          // No other form has them folded in; once without shows that it is not taken at all.
          if (norms > 0 && form.form != WeightForm::kBf16 && !form.quantise_input) continue;
          const bool ahead = (norms & 1) != 0, behind = (norms & 2) != 0;
          cases.push_back({std::string("attention half, ") + form.name + " of " +
                               std::to_string(r.hidden) + ", " + HeadsAndCache(r.heads, cache) +
                               (ahead ? ", norm ahead" : "") + (behind ? ", norm behind" : "") +
                               (form.quantise_input ? ", x coded" : ""),
                           r, form, cache, ahead, behind});
        }
      }
    }
  }
  return cases;
}

}  // namespace baltoro::cuda::launch_table
