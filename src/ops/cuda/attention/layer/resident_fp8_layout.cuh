#pragma once

// A resident block of the attention half of one token whose weights are e4m3: half the bytes of
// bf16, so that all of its rows have room at once. They are asked for in the order of their use,
// and nothing waits for room but keys, which come to lie where the first matrix was.

#include "ops/cuda/attention/layer/resident_fp8_decode.cuh"
#include "ops/cuda/attention/layer/resident_layout.cuh"
#include "ops/cuda/linear/e4m3_f16_device.cuh"

namespace baltoro::cuda::resident {

inline constexpr int kStep = 128;  // columns that have one scale
inline constexpr int kInputSteps = kHidden / kStep, kQuerySteps = kQLora / kStep,
                     kOutSteps = kHeads * kValue / kStep;
inline constexpr int kUnit = 2 * kStep;  // columns of the low-rank query that a warp rounds
inline constexpr int kQueryWarps = kQLora / kUnit;
static_assert(kQueryWarps * kUnit == kQLora && kQueryWarps <= kWarps);
static_assert(kInputSteps % kWarps == 0 && kOutSteps == kWarps);

// Bytes from the beginning of shared memory.
template <class Keys>
struct CodedLayout {
  // The first matrix comes in pieces of the same columns of both strips; in each of them a warp
  // has every eighth step. The last one is short: behind it nothing is left to do but its product.
  static constexpr int kStages = 3, kSlots = 0;
  static constexpr int kStageSteps = 3;  // of a warp
  static constexpr int kStageColumns = kStageSteps * kWarps * kStep;
  static_assert(kStages == (kHidden + kStageColumns - 1) / kStageColumns);

  static constexpr int kInputRows = 0;
  static constexpr int kQuery = kInputRows + kInputStrips * StripBytes(kHidden);
  static constexpr int kKey = kQuery + 2 * StripBytes(kQLora);
  // From here on rows lie without gaps, a strip one copy: few loads in which two rows meet.
  static constexpr int kValueAt = kKey + kFoldedStrips * kStrip * kNope * 2;
  static constexpr int kOut = kValueAt + kStrip * kLatent * 2;
  static constexpr int kScales = kOut + kOutStrips * kStrip * kHeads * kValue;
  static constexpr int kInputScales = kScales;
  static constexpr int kQueryScales = kInputScales + kInputStrips * kInputSteps * 4;
  static constexpr int kOutScales = kQueryScales + 2 * kQuerySteps * 4;
  static constexpr int kSmall = kOutScales + kOutStrips * kOutSteps * 4;
  static constexpr int kValueShift = 0;

  // Barriers, eight bytes each.
  static constexpr int kFull = kSmall, kEmpty = kFull + 8 * kStages, kQueryFull = kEmpty,
                       kKeyFull = kQueryFull + 8, kValueFull = kKeyFull + 8,
                       kOutFull = kValueFull + 8, kKeysAsked = kOutFull + 8,
                       kKeysFull = kKeysAsked + 8, kKeysEmpty = kKeysFull + 8 * Keys::kStages;
  static_assert(kKeysEmpty + 8 * Keys::kStages <= kSmall + 256);

  static constexpr int kInputSums = kSmall + 256;
  static constexpr int kBytes = kInputSums + kWarps * kInputStrips * 32 * 8;
  // The rounded low-rank query, where those sums were.
  static constexpr int kQueryCodes = kInputSums;
  static_assert(kQueryCodes + kQLora <= kBytes && kBytes <= 232448);

  // Over the first matrix: keys, then what belongs to the queries.
  static constexpr int kQuerySums = Keys::kStages * Keys::kStageBytes;
  static constexpr int kQuerySquares = kQuerySums + kQueryWarps * 2 * 32 * 8;
  static constexpr int kQueryXScales = kQuerySquares + kQueryWarps * 4;
  static_assert(kQueryXScales + kQuerySteps * 4 <= kQuery);
  // Over the second one.
  static constexpr int kQueriesAt = kQuery;
  static constexpr int kDecode = kQueriesAt + 9600;
  static constexpr int kMerged = kDecode + 5888;  // floats [kWarps][32]
  static constexpr int kValueSums = kMerged + kWarps * 32 * 4;
  static constexpr int kWeights = kValueSums + kWarps * 32 * 8;  // floats [kWarps][kBlocks]
  static_assert(kWeights + kWarps * kBlocks * 4 <= kKey);
  // Behind the values: rounded value heads where attention's things were, a place for each warp;
  // sums where keys were.
  static constexpr int kOutCodes = kQueriesAt;
  static_assert(kOutCodes + kWarps * kStep <= kMerged);
  static constexpr int kOutSums = 0;
  static_assert(kOutSums + kOutStrips * kWarps * 32 * 8 <= kQuerySums);
};

// By the two warps that bring a block's weights. A barrier has one arrival of each of them.
template <class Place>
__device__ void BringCodes(const Params& p, uint32_t memory, int warp) {
  const int lane = threadIdx.x % 32, block = blockIdx.x;
  const int strip = lane / kWarpRows, row = warp * kWarpRows + lane % kWarpRows;
  const uint64_t policy = ReadOncePolicy();
  const auto expect = [&](int barrier, int bytes) {
    if (lane == 0) hopper::ArriveExpecting(memory + barrier, static_cast<uint32_t>(bytes));
    __syncwarp();
  };
  const auto bring = [&](int to, const char* from, int bytes, int barrier) {
    CopyBulk(memory + to, from, static_cast<uint32_t>(bytes), memory + barrier, policy);
  };
  const bool brings_scales = warp == 0 && lane == 31;
  for (int stage = 0; stage < Place::kStages; ++stage) {
    const int first = stage * Place::kStageColumns,
              bytes = min(Place::kStageColumns, kHidden - first);
    const int scales = stage == 0 ? kInputStrips * kInputSteps * 4 : 0;
    const int full = Place::kFull + 8 * stage, at = block * kInputStrips;
    expect(full, kInputStrips * kWarpRows * bytes + (warp == 0 ? scales : 0));
    if (strip < kInputStrips) {
      bring(Place::kInputRows + strip * StripBytes(kHidden) + RowAt(row, kHidden) + first,
            p.w_inputs + (int64_t{at + strip} * kStrip + row) * kHidden + first, bytes, full);
    } else if (scales != 0 && brings_scales) {
      bring(Place::kInputScales, p.inputs_scales + int64_t{at} * kInputSteps * 4, scales, full);
    }
  }
  __syncwarp();
  if (block >= kOwners) return;
  const QueryStrips queries(block);
  const int scales = queries.count * kQuerySteps * 4;
  expect(Place::kQueryFull, queries.count * kWarpRows * kQLora + (warp == 0 ? scales : 0));
  if (strip < queries.count) {
    bring(Place::kQuery + strip * StripBytes(kQLora) + RowAt(row, kQLora),
          p.w_q + (int64_t{queries.first + strip} * kStrip + row) * kQLora, kQLora,
          Place::kQueryFull);
  } else if (brings_scales) {
    bring(Place::kQueryScales, p.q_scales + int64_t{queries.first} * kQuerySteps * 4, scales,
          Place::kQueryFull);
  }
  __syncwarp();
  const int head = block / kHeadBlocks, in_head = block % kHeadBlocks;
  // Half of `strips` strips, of rows of `row_bytes`.
  const auto half = [&](int to, const char* from, int strips, int row_bytes, int barrier) {
    const int bytes = kWarpRows * row_bytes, at = (lane * kWeightWarps + warp) * bytes;
    if (lane < strips) bring(to + at, from + at, bytes, barrier);
    __syncwarp();
  };
  expect(Place::kKeyFull, kFoldedStrips * kWarpRows * kNope * 2);
  half(Place::kKey,
       p.w_key + head * p.key_head_bytes + int64_t{in_head} * kFoldedStrips * kStrip * kNope * 2,
       kFoldedStrips, kNope * 2, Place::kKeyFull);
  expect(Place::kValueFull, kWarpRows * kLatent * 2);
  half(Place::kValueAt,
       p.w_value + head * p.value_head_bytes + int64_t{in_head} * kStrip * kLatent * 2, 1,
       kLatent * 2, Place::kValueFull);
  constexpr int kOutScaleBytes = kOutStrips * kOutSteps * 4;
  expect(Place::kOutFull,
         kOutStrips * kWarpRows * kHeads * kValue + (warp == 0 ? kOutScaleBytes : 0));
  if (brings_scales) {
    bring(Place::kOutScales, p.out_scales + int64_t{block} * kOutScaleBytes, kOutScaleBytes,
          Place::kOutFull);
  }
  half(Place::kOut, p.w_out + int64_t{block} * kOutStrips * kStrip * kHeads * kValue, kOutStrips,
       kHeads * kValue, Place::kOutFull);
}

}  // namespace baltoro::cuda::resident
