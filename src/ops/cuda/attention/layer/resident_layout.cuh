#pragma once

// What a resident block of the attention half (resident_attention.cu) is given, which rows of the
// matrices are its own, and where they lie in its shared memory.

#include "ops/cuda/attention/layer/resident_decode.cuh"
#include "ops/cuda/norm_begun.h"
#include "ops/cuda/ptx/barriers.cuh"
#include "ops/cuda/rows/kv_token_device.cuh"

namespace baltoro::cuda::resident {

struct Board;

struct Params {
  Board* board;
  // Rows one after the other: w_key and w_value bf16, the others bf16 or e4m3 in blocks of 128 x
  // 128, then with scales.
  const char *w_inputs, *w_q, *w_key, *w_value, *w_out;
  const char *inputs_scales, *q_scales, *out_scales;  // f32 [strips, steps of 128 columns]
  int64_t key_head_bytes, value_head_bytes;
  const char* x;  // [rows, kHidden] bf16
  int64_t x_row_bytes;
  int rows;
  const char* codes;       // of e4m3 weights: the only row of x rounded
  const float* x_scales;   // of its steps
  BegunNormArgs from, to;  // where x comes from a norm, and where the product goes
  float* out;              // [rows, kHidden] without `to`
  int64_t out_stride;
  InputParams input;
  MlaKernelArgs mla;
  const int32_t* row_of;  // [rows] token of a row of attention; -1: none
  Conduct conduct;
};

inline constexpr int kTokenBlocks = kBlocks - kOwners;  // these make cached tokens
inline constexpr int kStrip = 8;  // rows of a matrix that are multiplied together
inline constexpr int kInputStrips = kInputs / kStrip / kBlocks;            // of a block
inline constexpr int kQueryStrips = kHeads * kHead / kStrip;               // of all
inline constexpr int kTwoStrips = kQueryStrips - kOwners;                  // blocks with two
inline constexpr int kFoldedStrips = kHeads * kLatent / kStrip / kOwners;  // of a block
inline constexpr int kOutStrips = kHidden / kStrip / kOwners;              // likewise
inline constexpr int kMergeColumns = kLatent / kHeadBlocks;                // likewise
static_assert(kInputStrips * kStrip * kBlocks == kInputs && kInputStrips == 2);
static_assert(kTwoStrips > 0 && kTwoStrips < kOwners);
static_assert(kFoldedStrips == 4 && kOutStrips == 7 && kMergeColumns == 32);
static_assert(kOwners == BegunNormArgs::kParts);

// Rows of a strip in shared memory: every second one is shifted by half of what all banks give at
// once, so that eight lanes that read of two rows touch each bank once.
inline constexpr int kShift = 64;
__host__ __device__ constexpr int RowAt(int row, int row_bytes, int shift = kShift) {
  return row / 2 * (2 * row_bytes + shift) + row % 2 * (row_bytes + shift);
}
__host__ __device__ constexpr int StripBytes(int row_bytes) {
  return RowAt(kStrip, row_bytes);
}

// Shared memory, bytes from its beginning. The first matrix comes through slots that fill all of
// it; what is behind it in turn comes to lie over the slots, each part in a place of its own, so
// that nothing waits for more than the first matrix. Keys lie where the queries' weights were.
template <int kChunk>
struct Layout {
  static constexpr int kChunkBytes = 2 * kChunk;  // of a row of the first matrix in a slot
  static constexpr int kSlot = StripBytes(kChunkBytes);
  static constexpr int kChunks = kHidden / kChunk;
  static constexpr int kStages = kInputStrips * kChunks;
  static constexpr int kRoom = 222720;
  static constexpr int kSlots = kRoom / kSlot;
  static_assert(kSlots <= kStages && kSlots <= 30 && kStages <= 32);

  static constexpr int kQuery = (kStages - kSlots) * kSlot;
  static constexpr int kKey = kQuery + 2 * StripBytes(2 * kQLora);
  static constexpr int kKeyEnd = kKey + kFoldedStrips * StripBytes(2 * kNope);
  static constexpr int kKeysEnd = mla::kStageBytes;  // of attention
  static constexpr int kValueAt = kKeyEnd > kKeysEnd ? kKeyEnd : kKeysEnd;
  static constexpr int kOut = kValueAt + StripBytes(2 * kLatent);
  static constexpr int kScratch = kOut + kOutStrips * StripBytes(2 * kHeads * kValue);
  static constexpr int kMerged = kScratch;  // floats [kWarps][32]
  static constexpr int kValueSums = kMerged + kWarps * 32 * 4;
  static constexpr int kOutSums = kValueSums + kWarps * 32 * 8;
  static constexpr int kWeights = kOutSums;  // floats [kWarps][kBlocks], of pieces
  static_assert(kWarps * kBlocks * 4 <= kOutStrips * kWarps * 32 * 8);
  static constexpr int kSquares = kOutSums + kOutStrips * kWarps * 32 * 8;
  static constexpr int kScratchEnd = kSquares + kOutStrips * kRows * 4;

  static constexpr int kSmall = kSlots * kSlot;
  static_assert(kScratchEnd <= kSmall && kScratch + Decoder::kQueryBytes <= kSmall);
  // Barriers, eight bytes each: slots full, slots empty, then others. Full has one for each stage,
  // not for each slot: a warp that waits for the second stage of a slot has not waited for the
  // first, another's, and a barrier that is still in its first phase lets who asks for the second
  // one's parity pass. Empty is waited for once a slot.
  static constexpr int kFull = kSmall, kEmpty = kFull + 8 * 32, kQueryFull = kEmpty + 8 * 30,
                       kKeyFull = kQueryFull + 8, kValueFull = kKeyFull + 8,
                       kOutFull = kValueFull + 8, kKeysFull = kOutFull + 8,
                       kKeysEmpty = kKeysFull + 8, kKeysAsked = kKeysEmpty + 8;
  static constexpr int kInputScales = kSmall + 768, kQueryScales = kInputScales + kRows * 4;
  // Attention's small things lie where sums were.
  static constexpr int kInputSums = kSmall + 1024;
  static constexpr int kQuerySums = kInputSums + kWarps * kInputStrips * 32 * 8;
  static constexpr int kBytes = kQuerySums + kWarps * 2 * 32 * 8;
  static_assert(kKeysAsked + 8 <= kInputScales && kQueryScales + kRows * 4 <= kInputSums);
  static constexpr int kDecode = kInputSums, kQueriesAt = kScratch;
  static constexpr int kValueShift = kShift;
  static_assert(kInputSums + static_cast<int>(sizeof(Decoder::Shared)) <= kBytes);
  static_assert(kBytes <= 232448);
};

// The rows of w_q of a block: strips [first, first + count).
struct QueryStrips {
  int first, count;

  __device__ explicit QueryStrips(int block)
      : first(block < kTwoStrips ? 2 * block : kTwoStrips + block),
        count(block >= kOwners     ? 0
              : block < kTwoStrips ? 2
                                   : 1) {}
};

// Of the third warpgroup: these bring weights, each the same rows of every strip, and the one
// behind them keys.
inline constexpr int kWeightWarps = 2;
inline constexpr int kWarpRows = kStrip / kWeightWarps;

// By the warps that bring a block's weights, in the order of their use. Nothing here waits for data
// but for the room that the first matrix leaves.
template <int kChunk>
__device__ void BringWeights(const Params& p, uint32_t memory, int warp) {
  using Place = Layout<kChunk>;
  const int lane = threadIdx.x % 32, block = blockIdx.x, row = warp * kWarpRows + lane;
  const uint64_t policy = ReadOncePolicy();
  int freed = 0;
  // Waits until the first `bytes` of the slots were multiplied.
  const auto free_up_to = [&](int bytes) {
    for (; freed < Place::kSlots && freed * Place::kSlot < bytes; ++freed) {
      hopper::Wait(memory + Place::kEmpty + 8 * freed, 0);
    }
  };
  const auto expect = [&](uint32_t barrier, int strips, int row_bytes) {
    if (lane == 0) {
      hopper::ArriveExpecting(barrier, static_cast<uint32_t>(strips * kWarpRows * row_bytes));
    }
    __syncwarp();
  };
  // `strips` of whole rows, strips one after the other.
  const auto bring = [&](int to, const char* from, int strips, int row_bytes, int barrier) {
    expect(memory + barrier, strips, row_bytes);
    for (int s = 0; s < strips; ++s) {
      free_up_to(to + (s + 1) * StripBytes(row_bytes));
      if (lane >= kWarpRows) continue;
      CopyBulk(memory + to + s * StripBytes(row_bytes) + RowAt(row, row_bytes),
               from + (int64_t{s} * kStrip + row) * row_bytes, static_cast<uint32_t>(row_bytes),
               memory + barrier, policy);
    }
  };
  const bool owner = block < kOwners;
  for (int stage = 0; stage < Place::kStages; ++stage) {
    const int slot = stage % Place::kSlots;
    if (stage >= Place::kSlots) free_up_to((slot + 1) * Place::kSlot);
    const uint32_t full = memory + Place::kFull + 8 * stage;
    expect(full, 1, Place::kChunkBytes);
    if (lane >= kWarpRows) continue;
    const int strip = block * kInputStrips + stage / Place::kChunks;
    CopyBulk(memory + slot * Place::kSlot + RowAt(row, Place::kChunkBytes),
             p.w_inputs + (int64_t{strip} * kStrip + row) * (kHidden * 2) +
                 stage % Place::kChunks * Place::kChunkBytes,
             Place::kChunkBytes, full, policy);
  }
  __syncwarp();
  if (!owner) return;
  const QueryStrips queries(block);
  bring(Place::kQuery, p.w_q + int64_t{queries.first} * kStrip * kQLora * 2, queries.count,
        kQLora * 2, Place::kQueryFull);
  const int head = block / kHeadBlocks, in_head = block % kHeadBlocks;
  bring(Place::kKey,
        p.w_key + head * p.key_head_bytes + int64_t{in_head} * kFoldedStrips * kStrip * kNope * 2,
        kFoldedStrips, kNope * 2, Place::kKeyFull);
  bring(Place::kValueAt,
        p.w_value + head * p.value_head_bytes + int64_t{in_head} * kStrip * kLatent * 2, 1,
        kLatent * 2, Place::kValueFull);
  hopper::Wait(memory + Place::kKeysAsked, 0);  // keys are needed before the last weights
  constexpr int kRowBytes = kHeads * kValue * 2;
  bring(Place::kOut, p.w_out + int64_t{block} * kOutStrips * kStrip * kRowBytes, kOutStrips,
        kRowBytes, Place::kOutFull);
}

// By the warp that brings the keys of this block's part.
template <class Place, class Keys>
__device__ void BringKeys(const Params& p, const typename Keys::Maps& maps, uint32_t memory) {
  const int block = blockIdx.x;
  KeyCopies<Keys> keys(p.mla, maps, {memory, memory + Place::kKeysFull, memory + Place::kKeysEmpty},
                       block);
  keys.Fetch();
  hopper::WaitForPredecessors();
  if (keys.any()) keys.Bring();
  if (threadIdx.x % 32 == 0) hopper::Arrive(memory + Place::kKeysAsked);
  while (keys.any()) keys.Bring();
}

}  // namespace baltoro::cuda::resident
