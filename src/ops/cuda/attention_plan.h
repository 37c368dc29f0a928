#pragma once

// What PlanAttention makes of a step and MlaAttention reads in every layer.
//
// Each sequence's query tokens are computed in one of two forms, which differ in rounding alone:
//   absorbed   q_nope is brought into the latent space, MlaDecode attends to the latents as they
//              are cached, and the result is brought to the value heads. Costs 2 h (R + P + R) for
//              each query token and key: the form of a few query tokens.
//   expanded   keys and values of every head are made from the latents (2 h R (N + V) a key), then
//              plain attention of width N + P and V (2 h (N + P + V) a query token and key): the
//              form of many query tokens.
// Equal work at about 170 query tokens, less where the queries see half of the keys. The choice is
// made here by the number of query tokens; AttentionSequence::absorbed_from has no influence.

#include <cstdint>
#include <span>

#include "ops/cuda/mla_decode.h"
#include "ops/gpu_limits.h"
#include "ops/ops.h"

namespace baltoro::cuda {

inline constexpr int kAttentionNope = kGpuNope;
inline constexpr int kAttentionRope = kGpuRope;
inline constexpr int kAttentionValue = kGpuValue;

// Sequences of more query tokens are expanded; shorter ones too where there are very many.
inline constexpr int kAbsorbedTokensMax = 128;

inline constexpr int kPrefillRows = 128;  // query tokens of a tile
inline constexpr int kPrefillKeys = 128;  // keys taken at a time; passes begin at multiples

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

// Lies in the staging memory of the step; its arrays are on the device unless said.
struct AttentionPlan {
  int64_t tokens = 0;
  KvForm form = KvForm::kBf16;
  int32_t heads = 0;

  // The absorbed rows are computed in a compact order.
  int64_t absorbed_rows = 0;
  const int32_t* rows = nullptr;  // [absorbed_rows] row of q and out; -1: padding
  MlaDecodeLimits limits;
  MlaDecodeSequences sequences;
  void* workspace = nullptr;

  const ExpandedPass* passes = nullptr;  // host memory
  int64_t pass_count = 0;
  int64_t pass_rows_max = 0;
  int64_t partial_rows = 0;
  const int32_t* block_sources = nullptr;    // physical block; -1: none, to be zeros
  const int32_t* block_valid = nullptr;      // valid tokens
  const int32_t* block_positions = nullptr;  // of the first token
  const PrefillTile* tiles = nullptr;
  const PrefillMerge* merges = nullptr;
};

// Of expanded keys and values in one pass.
inline constexpr int64_t kAttentionPassBytes = int64_t{256} << 20;

// PlanAttention with smaller passes.
const AttentionPlan* PlanAttentionInPasses(const OpContext& ctx,
                                           Arena& arena,
                                           const AttentionPlanArgs& args,
                                           int64_t pass_bytes);

// How the cache's forms are called in MlaDecode.
MlaCacheType MlaCacheTypeOf(KvForm form);

// positions[s, b] = 64 b for b < width.  [sequences, stride]
void LaunchFillPositions(
    int32_t* positions, int64_t sequences, int64_t width, int64_t stride, cudaStream_t stream);

}  // namespace baltoro::cuda
