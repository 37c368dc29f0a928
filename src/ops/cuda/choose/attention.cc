#include "ops/cuda/choose/attention.h"

#include <algorithm>

#include "ops/cuda/attention/attention_sizes.h"
#include "ops/cuda/choose/launch_shape.h"

namespace baltoro::cuda {
namespace {

// Of few heads large tiles leave multiprocessors without a block.
constexpr int32_t kFewHeads = 16;

// A product of `depth` into `width` columns of each head.
HeadProductPlan HeadProduct(
    HeadProductWay kernel, int32_t depth, int32_t width, int64_t rows, const char* why) {
  const int32_t block_rows = kernel == HeadProductWay::kRows16Columns32 ? 16 : 64;
  const int32_t columns = kernel == HeadProductWay::kRows64Columns64    ? 64
                          : kernel == HeadProductWay::kRows64Columns128 ? 128
                                                                        : 32;
  return {.kernel = kernel,
          .strips = width / columns,
          .row_blocks = SharesOf(rows, block_rows),
          .shared_bytes = HeadProductBytes(depth, block_rows, columns),
          .why = why};
}

// Of few heads and up to 128 rows the largest tiles would leave most multiprocessors without a
// block: 8 heads of 64 rows are 32 blocks of 64 x 128.
constexpr int64_t kTensOfRows = 128;

HeadProductPlan Absorb(const AbsorbedQuestion& q) {
  const bool few_heads = q.limits.heads <= kFewHeads;
  const auto plan = [&](HeadProductWay kernel, const char* why) {
    return HeadProduct(kernel, kAttentionNope, kMlaLatent, q.rows, why);
  };
  if (q.rows <= 16) return plan(HeadProductWay::kRows16Columns32, "few rows");
  if (few_heads && q.rows <= 64) {
    return plan(HeadProductWay::kRows64Columns32, "few heads: narrow strips are more blocks");
  }
  if (few_heads && q.rows <= kTensOfRows) {
    return plan(HeadProductWay::kRows64Columns64, "few heads: narrow strips are more blocks");
  }
  return plan(HeadProductWay::kRows64Columns128, "many rows and heads: large tiles");
}

HeadProductPlan Values(const AbsorbedQuestion& q) {
  const bool few = q.rows <= 16 || (q.limits.heads <= kFewHeads && q.rows <= kTensOfRows);
  return HeadProduct(few ? HeadProductWay::kRows16Columns32 : HeadProductWay::kRows64Columns32,
                     kMlaLatent, kAttentionValue, q.rows,
                     few ? "few rows, or tens of few heads" : "many rows: the matrix is read less");
}

// Of up to 8 rows a sequence a tile of 64 rows would be seven eighths empty.
bool TakesBf16Rows8(const MlaDecodeLimits& limits, const DecodePlan& plan, int tokens) {
  return plan.tile_rows == kMlaHeads8Rows && limits.chunk_blocks == 0 &&
         limits.sequences * limits.max_query_tokens <= tokens;
}

DecodeWay DecodeKernel(const MlaDecodeLimits& limits, const DecodePlan& plan) {
  // Up to so many query tokens a cache of bf16 has a kernel for few rows.
  constexpr int kHundredsOfTokens = 512;
  switch (limits.cache_type) {
    case MlaCacheType::kFp8E4m3:
      return plan.tile_rows == kMlaHeads8Rows ? DecodeWay::kFp8Rows8 : DecodeWay::kFp8Rows64;
    case MlaCacheType::kFp8Groups:
      return DecodeWay::kFp8GroupsRows64;
    case MlaCacheType::kBf16:
      break;
  }
  return TakesBf16Rows8(limits, plan, kHundredsOfTokens) ? DecodeWay::kBf16Rows8
                                                         : DecodeWay::kBf16Rows64;
}

const char* WhyDecode(DecodeWay kernel) {
  switch (kernel) {
    case DecodeWay::kBf16Rows8:
    case DecodeWay::kFp8Rows8:
      return "up to 8 rows a sequence: a tile of 64 would be mostly empty";
    case DecodeWay::kFp8GroupsRows64:
      return "a cache with group scales has one kernel";
    case DecodeWay::kBf16Rows64:
    case DecodeWay::kFp8Rows64:
      break;
  }
  return "many rows a sequence, very many sequences, or parts at fixed places";
}

// With the value heads, where no sums are wanted and sequences are not cut at fixed places; of more
// rows a launch of its own and larger products read less.
MergePlan Merge(const AbsorbedQuestion& q, const DecodePlan& decode) {
  // Of more rows the matrices are read less often by blocks of several rows.
  constexpr int64_t kSingleRowsMax = 2;
  // Of more heads the matrices are read too often by many rows.
  const int64_t rows_max = q.limits.heads > kFewHeads ? 16 : 64;
  if (q.limits.chunk_blocks != 0 || q.sums || q.rows > rows_max) {
    return ChooseMergeAlone(q.limits, decode);
  }
  if (q.rows <= kSingleRowsMax && decode.parts <= kMergedPiecesMax) {
    return {.kernel = MergeWay::kWithValuesRow1,
            .blocks = q.rows,
            .why = "a row or two: the matrix is in registers before the pieces are there"};
  }
  // As few rows a block as leave no more than a block a multiprocessor.
  constexpr const char* kWhy = "few rows: one launch adds up and multiplies";
  if (q.rows <= 8) {
    return {.kernel = MergeWay::kWithValuesRows2, .blocks = SharesOf(q.rows, 2), .why = kWhy};
  }
  if (q.rows <= 16) {
    return {.kernel = MergeWay::kWithValuesRows4, .blocks = SharesOf(q.rows, 4), .why = kWhy};
  }
  if (q.rows <= 32) {
    return {.kernel = MergeWay::kWithValuesRows8, .blocks = SharesOf(q.rows, 8), .why = kWhy};
  }
  return {.kernel = MergeWay::kWithValuesRows16, .blocks = SharesOf(q.rows, 16), .why = kWhy};
}

std::string NameOf(HeadProductWay kernel) {
  switch (kernel) {
    case HeadProductWay::kRows16Columns32:
      return "rows16x32";
    case HeadProductWay::kRows64Columns32:
      return "rows64x32";
    case HeadProductWay::kRows64Columns64:
      return "rows64x64";
    case HeadProductWay::kRows64Columns128:
      return "rows64x128";
  }
  return "";
}

std::string NameOf(DecodeWay kernel) {
  switch (kernel) {
    case DecodeWay::kBf16Rows8:
      return "bf16_rows8";
    case DecodeWay::kFp8Rows8:
      return "fp8_rows8";
    case DecodeWay::kBf16Rows64:
      return "bf16_rows64";
    case DecodeWay::kFp8Rows64:
      return "fp8_rows64";
    case DecodeWay::kFp8GroupsRows64:
      return "fp8_groups_rows64";
  }
  return "";
}

std::string NameOf(MergeWay kernel) {
  switch (kernel) {
    case MergeWay::kWithValuesRow1:
      return "values_row1";
    case MergeWay::kWithValuesRows2:
      return "values_rows2";
    case MergeWay::kWithValuesRows4:
      return "values_rows4";
    case MergeWay::kWithValuesRows8:
      return "values_rows8";
    case MergeWay::kWithValuesRows16:
      return "values_rows16";
    case MergeWay::kQuarters:
      return "quarters";
    case MergeWay::kRows:
      return "rows";
  }
  return "";
}

}  // namespace

DecodePlan ChooseDecode(const MlaDecodeLimits& limits) {
  // Steps of so few query tokens are a matter of latency, so they are cut into smaller pieces: the
  // longest part is all that counts, and there are parts enough.
  constexpr int kFewTokens = 64;
  DecodePlan plan;
  const int64_t rows = int64_t{limits.heads} * limits.max_query_tokens;
  plan.tiles = static_cast<int32_t>(SharesOf(rows, kMlaTileRows));
  plan.tile_rows = static_cast<int32_t>(std::min<int64_t>(kMlaTileRows, SharesOf(rows, 8) * 8));
  plan.parts = limits.multiprocessors;
  const int64_t items = int64_t{plan.tiles} * limits.sequences;
  if (limits.chunk_blocks > 0) {
    plan.merges_max = items;
    plan.slots = plan.tiles * (limits.max_total_blocks / limits.chunk_blocks) + items;
    plan.chunk_slots = items;
  } else {
    plan.merges_max = plan.parts;
    plan.slots = 2 * int64_t{plan.parts};
  }
  const bool few = TakesBf16Rows8(limits, plan, kFewTokens);
  plan.least_piece = few ? 1 : 2;
  plan.overfill = few ? 0 : 2;
  plan.kernel = DecodeKernel(limits, plan);
  const bool fixed = plan.kernel == DecodeWay::kBf16Rows8 || plan.kernel == DecodeWay::kFp8Rows8;
  plan.shared_bytes = fixed ? 0 : mla::SharedBytes(plan.tile_rows);
  plan.why = WhyDecode(plan.kernel);
  return plan;
}

MergePlan ChooseMergeAlone(const MlaDecodeLimits& limits, const DecodePlan& decode) {
  // Rows of heads up to which quarters are faster; of 256 they are slower.
  constexpr int64_t kQuarteredRows = 64;
  const int64_t units = decode.merges_max * (decode.tile_rows / kMergeGroups);
  const int64_t rows = int64_t{limits.sequences} * decode.tiles * decode.tile_rows;
  const bool few = rows <= kQuarteredRows;
  return {.kernel = few ? MergeWay::kQuarters : MergeWay::kRows,
          .blocks = std::min<int64_t>(units, 4 * int64_t{decode.parts}),
          .why = few ? "few rows: nothing is known before the loads" : "many rows"};
}

AbsorbedPlan ChooseAbsorbed(const AbsorbedQuestion& q) {
  AbsorbedPlan plan;
  plan.absorb = Absorb(q);
  plan.decode = ChooseDecode(q.limits);
  plan.merge = Merge(q, plan.decode);
  if (!plan.merge.with_values()) plan.values = Values(q);
  return plan;
}

PrefillPlan ChoosePrefill(const PrefillQuestion& q) {
  constexpr int64_t kGroupBytes = int64_t{40} << 20;  // of keys and values: what the L2 holds
  const int64_t head_bytes = q.rows * (kAttentionNope + kAttentionValue) * 2;
  return {
      .head_group = static_cast<int32_t>(std::clamp<int64_t>(kGroupBytes / head_bytes, 1, q.heads)),
      .blocks = q.tiles * q.heads,
      .merges = q.merges,
      .why = "keys and values of the heads side by side stay in the L2"};
}

std::string Why(const AbsorbedPlan& plan) {
  return std::string(plan.decode.why) + ", " + plan.merge.why;
}

std::string Text(const AbsorbedPlan& plan) {
  std::string text = NameOf(plan.absorb.kernel) + " > " + NameOf(plan.decode.kernel);
  if (plan.decode.least_piece == 1) text += " in small pieces";
  text += " > merge_" + NameOf(plan.merge.kernel);
  return plan.merge.with_values() ? text : text + " > " + NameOf(plan.values.kernel);
}

std::string Text(const PrefillPlan& plan) {
  return "prefill, " + std::to_string(plan.head_group) + " heads side by side" +
         (plan.merges > 0 ? " > merge" : "");
}

}  // namespace baltoro::cuda
