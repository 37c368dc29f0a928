#pragma once

// Which kernels attend, and how they are launched: the rows of a layer in absorbed form (queries
// into the latent space, attention to latents, pieces added up, value heads), and the tiles of a
// pass of expanded keys (attention_step.h says which rows are which). Blocks of none of these wait
// for each other, so whether the card is owned makes no difference.

#include <cstdint>
#include <string>

#include "ops/cuda/attention/decode/mla_decode_limits.h"

namespace baltoro::cuda {

struct AbsorbedQuestion {
  MlaDecodeLimits limits;
  int64_t rows = 0;
  bool sums = false;  // the log of each softmax sum is wanted
};

// Rows x columns that a block makes of one head's product.
enum class HeadProductWay {
  kRows16Columns32,
  kRows64Columns32,
  kRows64Columns64,
  kRows64Columns128,
};

struct HeadProductPlan {
  HeadProductWay kernel = HeadProductWay::kRows16Columns32;
  int32_t strips = 0;      // of columns
  int64_t row_blocks = 0;  // a block for each, each strip and each head
  int32_t shared_bytes = 0;
  const char* why = "";

  bool operator==(const HeadProductPlan&) const = default;
};

// By the cache's elements, and the rows of a tile (query tokens times heads).
enum class DecodeWay { kBf16Rows8, kFp8Rows8, kBf16Rows64, kFp8Rows64, kFp8GroupsRows64 };

struct DecodePlan {
  DecodeWay kernel = DecodeWay::kBf16Rows64;
  int32_t parts = 0;      // of the context, a block each
  int32_t tiles = 0;      // of one sequence, at most
  int32_t tile_rows = 0;  // of a tile that can be used: 8, 16, .. 64
  int64_t slots = 0;      // of partial results
  int64_t merges_max = 0;
  int64_t chunk_slots = 0;   // of the first slots of tiles and sequences, only with chunk_blocks
  int32_t least_piece = 0;   // blocks of keys: no smaller piece is cut off
  int32_t overfill = 0;      // a part takes this much more to finish a sequence
  int32_t shared_bytes = 0;  // of the kernels of 64 rows
  const char* why = "";

  bool operator==(const DecodePlan&) const = default;
};

// Together with the value heads, with so many rows a block; or alone.
enum class MergeWay {
  kWithValuesRow1,
  kWithValuesRows2,
  kWithValuesRows4,
  kWithValuesRows8,
  kWithValuesRows16,
  kQuarters,  // a row is four blocks'
  kRows,
};

struct MergePlan {
  MergeWay kernel = MergeWay::kRows;
  int64_t blocks = 0;  // of rows; with values: for each head and each 32 of its columns
  const char* why = "";

  bool with_values() const { return kernel < MergeWay::kQuarters; }
  bool operator==(const MergePlan&) const = default;
};

struct AbsorbedPlan {
  HeadProductPlan absorb;
  DecodePlan decode;
  MergePlan merge;
  HeadProductPlan values;  // where the merge is alone

  bool operator==(const AbsorbedPlan&) const = default;
};

AbsorbedPlan ChooseAbsorbed(const AbsorbedQuestion& question);

// Attention to latents alone, and the merge without value heads.
DecodePlan ChooseDecode(const MlaDecodeLimits& limits);
MergePlan ChooseMergeAlone(const MlaDecodeLimits& limits, const DecodePlan& decode);

// One pass of expanded keys.
struct PrefillQuestion {
  int64_t rows = 0;  // of keys
  int32_t heads = 0;
  int64_t tiles = 0, merges = 0;
};

struct PrefillPlan {
  int32_t head_group = 0;  // heads that are computed side by side
  int64_t blocks = 0;
  int64_t merges = 0;  // tiles whose keys were dealt over several blocks
  const char* why = "";

  bool operator==(const PrefillPlan&) const = default;
};

PrefillPlan ChoosePrefill(const PrefillQuestion& question);

// A plan in one line, without what follows from the rows.
std::string Text(const AbsorbedPlan& plan);
// The reasons of its parts.
std::string Why(const AbsorbedPlan& plan);
std::string Text(const PrefillPlan& plan);

}  // namespace baltoro::cuda
