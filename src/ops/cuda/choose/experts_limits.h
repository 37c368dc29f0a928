#pragma once

// What the kernels of the expert bank take: shapes, rows, threads. Shared by the kernels and by the
// choice between them; without CUDA.

#include <cstdint>

#include "ops/cuda/choose/fp8_tiles_layout.h"
#include "ops/cuda/choose/tiles.h"

namespace baltoro::cuda {

// Rows of a tile at most: of INT4 kernels, then of FP8 ones.
inline constexpr int32_t kStreamingTileRows = 32;
inline constexpr int32_t kDigitTileRows = 16;  // of the streaming form by digits (int4_digits.h)
inline constexpr int32_t kGroupedTileRows = 112;
inline constexpr int32_t kMiddlingTileRows = 40;
inline constexpr int32_t kFp8StreamRows = 32;
inline constexpr int32_t kFp8RoundedRows = 16;  // where down rounds its input itself,
inline constexpr int32_t kFp8RoundedSteps = 2;  // of so many steps of 128 columns

// Blocks of a streaming form on one multiprocessor: while one adds up, the other multiplies.
inline constexpr int32_t kStreamingBlocks = 2;
inline constexpr int32_t kGroupedTeam = 2;
inline constexpr int32_t kMaxBlocks = 512;  // that the tables of the routing have room for
inline constexpr int32_t kBankSlotsMax = 1024;

// Entries (a token and one of its experts) that streaming INT4 kernels take each by itself: a few
// tokens rarely have an expert in common, and the routing preparation is a launch less.
inline constexpr int32_t kEntriesAlone = 32;
// Columns of the middle that the products by digits are for.
inline constexpr int32_t kDigitIntermediate = 256;
// Strips of gate/up that a warp of theirs multiplies together: so many up to 32 tokens, and above.
inline constexpr int32_t kDigitFewTogether = 2, kDigitTogether = 4, kDigitFewTokens = 32;

// The choice of a token's experts by one warp, in the kernel of a bank (choice_device.cuh).
inline constexpr int32_t kChoiceExpertsMax = 384, kChoiceTopMax = 8;

// The shared experts' second product in the sum of few tokens (combine_with_shared.cu).
inline constexpr int32_t kFinishTokens = 16, kFinishTopK = 8, kFinishColumns = 64;
inline constexpr int32_t kFinishWidthMax = 256, kFinishWidthStep = 32;

// The bank of one token in two launches (int4_one_token.cu).
inline constexpr int32_t kSingleExperts = 8, kSingleIntermediate = 256;
inline constexpr int32_t kSingleEndColumns = 64;      // of a block of the end
inline constexpr int32_t kSingleColumnTiles = 8 * 8;  // of 128 columns of x, at most

// A bank in one launch: the shape of K2's rank of eight. A block a multiprocessor, on 128 of them;
// all wait for each other.
inline constexpr int32_t kOneLaunchHidden = 7168, kOneLaunchIntermediate = 256;
inline constexpr int32_t kOneLaunchExperts = 8, kOneLaunchBlocks = 128;
inline constexpr int32_t kInt4OneLaunchTokens = 4;  // more are faster by digits

// FP8 entries by themselves (fp8_entries4.cu).
inline constexpr int32_t kFp8EntriesTokens = 4, kFp8EntriesExperts = 8;
inline constexpr int32_t kFp8EntriesSteps = 64, kFp8EndSteps = 4;  // of 128 columns, at most
inline constexpr int32_t kFp8EndWarps = kFp8EntriesExperts + 1;
inline constexpr int32_t kFp8EndStripsOfTwo = 4;  // where a multiprocessor is to have two blocks
inline constexpr int32_t kFp8EndSharedMax = 150 * 1024;

// Entries sorted by expert: by one block, or by a cluster (bank_sort.cu).
inline constexpr int32_t kSortBlocks = 8, kSortAlone = 2048;
inline constexpr int32_t kSortEach = 8, kSortThreads = 512, kSortThreadsMax = 1024;

// The preparation in one launch (bank_prepare.cu): a cluster chooses and sorts, a warp a token.
inline constexpr int32_t kPrepareRanks = 8, kPrepareEach = 2;
inline constexpr int32_t kPrepareFewWarps = 12, kPrepareManyWarps = 32;
inline constexpr int32_t kPrepareSlotsMax = 32 * kPrepareFewWarps;
inline constexpr int32_t kPrepareExpertsMax = 384, kPrepareTopMax = 32;

// The shared experts beside the choice (shared_at_choice.cu).
inline constexpr int32_t kBesideTokens = 64;  // of a block
inline constexpr int32_t kBesideGroups = 4, kBesideWidth = 256, kBesideHiddenMax = 7168;

}  // namespace baltoro::cuda
