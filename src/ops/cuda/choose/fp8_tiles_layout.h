#pragma once

// Shared memory of the kernels of tiles of 128 rows of e4m3: fp8_tiles (fp8_tiles.cu) and fp8_pairs
// (fp8_pairs.cu).

#include <algorithm>
#include <cstdint>

namespace baltoro::cuda {

inline constexpr int32_t kFp8TilesRows = 128;  // rows of a tile

namespace fp8_tiles {

inline constexpr int kStages = 4;
inline constexpr int kConsumerWarps = 8;
inline constexpr int kConsumers = 32 * kConsumerWarps;
inline constexpr int kProducers = 128;
inline constexpr int kThreads = kConsumers + kProducers;
inline constexpr int kTileRows = kFp8TilesRows;
inline constexpr int kWeightRows = 256;
inline constexpr int kBoxBytes = 128 * 128;  // 128 rows, 128 columns
inline constexpr int kWeightBytes = 2 * kBoxBytes;
inline constexpr int kStageBytes = kWeightBytes + kBoxBytes;
// Scales of a stage: of the rows of x, those that a lane takes together (rows 2 t and 2 t + 1 of
// every 8 for t = lane % 4), then of bands of 8 rows of weights. They are read while the stage may
// be filled again, hence twice as many of them.
inline constexpr int kScaleStages = 2 * kStages;
inline constexpr int kScalePitch = (kTileRows / 4 + 4) * 4;
inline constexpr int kScaleBytes = 4 * kScalePitch + kWeightRows / 8 * 4;
inline constexpr int kCodePitch = 128 + 16;   // results on their way out: rows of codes,
inline constexpr int kSharePitch = 256 + 16;  // or 16 rows of bf16, two buffers a warpgroup
inline constexpr int kShareBytes = 16 * kSharePitch;
inline constexpr int kStagingBytes = std::max(kTileRows * kCodePitch, 4 * kShareBytes);
inline constexpr int kSharedBytes =
    1024 + kStages * (kStageBytes + 16) + kScaleStages * kScaleBytes + kStagingBytes;

}  // namespace fp8_tiles

namespace fp8_pairs {

using namespace fp8_tiles;

inline constexpr int kStagingPitch = 128 + 16;  // bytes; a row of 64 bf16, or of 128 codes
inline constexpr int kWarpStaging = 16 * kStagingPitch;

inline constexpr int kScaleSteps = 8;  // that come together
inline constexpr int kScaleSlots = 3;
inline constexpr int kScaleRow =
    kScaleSteps * 4;  // bytes of a row of x or of a band of 8 of weights
// Steps from which the columns may be in halves.
inline constexpr int kStepsOfHalves = 2 * kScaleSteps;
// The copy engine takes boxes from whole 16 bytes of a row on (another place is an illegal
// instruction): so the second half begins at a whole four of scales.
constexpr int StepsOfFirstHalf(int steps) {
  return steps / 8 * 4;
}

template <bool kGated_,
          int kN_,
          int kG_,
          int kDeep_,
          bool kFloats_ = false,
          bool kHalves_ = false,
          bool kEights_ = false>
struct Shape {
  static constexpr bool kGated = kGated_;
  static constexpr bool kFloats = kFloats_;  // results in f32
  // Two pairs of blocks have half of the columns each and one piece, of one matrix.
  static constexpr bool kSplit = kHalves_;
  static constexpr int kCluster = kSplit ? 4 : 2;
  static constexpr int kN = kN_;        // rows of weights of a piece
  static constexpr int kG = kG_;        // of a group
  static constexpr int kDeep = kDeep_;  // groups under way
  static constexpr int kParts = kN / kG;
  static constexpr bool kEights = kEights_;  // rows are whole eights of steps
  // Rows of weights that share a scale, but for matrices whose parts begin anywhere.
  static constexpr int kUnit = kN % 128 == 0 ? 128 : kN % 64 == 0 ? 64 : 16;
  static constexpr int kUnits = kN / kUnit;
  static constexpr int kSums = kG / 2;  // of a thread
  static constexpr int kWeightBytes = kN * 128;
  static constexpr int kStageBytes = kWeightBytes + kBoxBytes;
  static constexpr int kFullStages = kN > 144    ? 4
                                     : kN == 144 ? 5
                                     : kN == 128 ? 6
                                     : kN == 80  ? 7
                                                 : 8;
  static constexpr int kStages = kFullStages - (kSplit ? 1 : 0);
  // Of a slot: rows of x, then bands, in one or (gate and up) two halves. What is not
  // fetched by rows is fewer bytes, of which 16 more may come.
  static constexpr int kInputScales = kTileRows * kScaleRow;
  static constexpr int kHalves = kGated ? 2 : 1;
  static constexpr int kBands = kN / 8 / kHalves;  // of a half
  static constexpr int kHalfScales = (kBands * kScaleRow + 127) / 128 * 128;
  static constexpr int kScaleBytes = kInputScales + kHalves * kHalfScales;
  static constexpr int kStaging = kStages * kStageBytes;  // offsets in shared memory
  static constexpr int kScales = kStaging + kConsumerWarps * kWarpStaging;
  // Sums of the other half of the columns: of one warpgroup's rows.
  static constexpr int kReceived = kScales + kScaleSlots * kScaleBytes;
  static constexpr int kReceivedBytes = kSplit ? 64 * kN * 4 : 0;
  static constexpr int kBarriers = kReceived + kReceivedBytes;
  static constexpr int kArrived = kBarriers + (2 * kStages + kScaleSlots) * 8;
  static constexpr int kShared = 1024 + kArrived + 8;
  static_assert(kShared <= 232448 && kScaleBytes % 128 == 0);
  static_assert(kN % kG == 0 && (kDeep == 1 || kParts == 1 || kParts % 2 == 0));
};

}  // namespace fp8_pairs

}  // namespace baltoro::cuda
