#pragma once

// Which form computes the query tokens of a step's sequences, and how their keys are cut, the same
// for every layer. Plain lists: nothing is on the device yet.
//
// Each sequence's query tokens are computed in one of two forms, which differ in rounding alone:
//   absorbed   q_nope is brought into the latent space, MlaDecode attends to the latents as they
//              are cached, and the result is brought to the value heads. Costs 2 h (R + P + R) for
//              each query token and key: the form of a few query tokens.
//   expanded   keys and values of every head are made from the latents (2 h R (N + V) a key), then
//              plain attention of width N + P and V (2 h (N + P + V) a query token and key): the
//              form of many query tokens.
// Equal work at about 170 query tokens, less where the queries see half of the keys. The choice is
// made by the number of query tokens; AttentionSequence::absorbed_from has no influence.

#include <cstdint>
#include <string>
#include <vector>

#include "ops/cuda/attention/attention_sizes.h"
#include "ops/cuda/attention/decode/mla_decode_limits.h"
#include "ops/cuda/choose/card.h"
#include "ops/ops.h"

namespace baltoro::cuda {

// Sequences of more query tokens are expanded; shorter ones too where there are very many.
inline constexpr int kAbsorbedTokensMax = 128;

// Of expanded keys and values in one pass.
inline constexpr int64_t kAttentionPassBytes = int64_t{256} << 20;

// Query tokens that MlaDecode takes as one sequence, with the keys of sequence `source`.
struct AbsorbedRun {
  int32_t source;   // of the step's sequences
  int32_t skipped;  // query tokens of the source before these
  int32_t count;
};

// One tile of query tokens against keys of one pass; every head does the same.
struct PrefillTile {
  enum Flags : int32_t { kHasPrevious = 1, kIsLast = 2 };

  int32_t query_row;    // of q and out
  int32_t query_count;  // 1..kPrefillRows
  int32_t first_position;
  int32_t key_row;      // among the pass's rows, a multiple of kPrefillKeys
  int32_t key_tiles;    // of kPrefillKeys; may be 0
  int32_t key_count;    // valid rows from key_row on
  int32_t partial_row;  // of the results between passes
  int32_t flags;
};

// A tile whose keys were dealt over several thread blocks: the result of part p of row r lies in
// row first_partial + p * query_count + r of the results between.
struct PrefillMerge {
  int32_t query_row;
  int32_t query_count;
  int32_t first_partial;
  int32_t parts;
};

// A run of keys that is expanded at once, of one or several sequences.
struct ExpandedPass {
  int64_t rows = 0;         // of expanded keys, a multiple of kPrefillKeys
  int64_t first_block = 0;  // in the arrays of blocks: rows / 64 of them
  int64_t first_tile = 0;
  int64_t tiles = 0;
  int64_t first_merge = 0;
  int64_t merges = 0;
};

struct AttentionStep {
  // Absorbed rows, in a compact order; none without runs.
  std::vector<AbsorbedRun> runs;
  int64_t absorbed_rows = 0;
  MlaDecodeLimits limits;

  std::vector<ExpandedPass> passes;
  int64_t pass_rows_max = 0;
  int64_t partial_rows = 0;
  std::vector<PrefillTile> tiles;
  std::vector<PrefillMerge> merges;
  // Of the blocks of all passes: where they are (-1: none, to be zeros), valid tokens, position of
  // the first token.
  std::vector<int32_t> block_sources, block_valid, block_positions;

  const char* why = "";
};

AttentionStep ChooseAttentionStep(const AttentionPlanArgs& args,
                                  int64_t pass_bytes,
                                  const Card& card);

// Whether `rows` rows of a step, several a sequence, should be given as sequences of one row each,
// where each sees `keys` keys at most. Eight heads of one row have a kernel of their own, and the
// attention half in one launch takes one row a sequence; its blocks write over the keys they read
// those of all rows of the step. Each row reads its keys then, which costs more than is gained from
// some number on (docs/kernels/mla-decode.md).
bool ChooseRowsAlone(int32_t heads, int64_t rows, KvForm form, int64_t keys);

// How the cache's forms are called in MlaDecode.
MlaCacheType MlaCacheTypeOf(KvForm form);

// In one line, without what follows from the rows.
std::string Text(const AttentionStep& step);

}  // namespace baltoro::cuda
