#pragma once

// Sizes of the kernels over rows, without CUDA: for the kernels and for who chooses among them.

#include <cstdint>

namespace baltoro::cuda {

// Rows of a step from which what a rank adds to a sum over ranks may be bf16: the first of a class
// (ops/row_class.h). Parts of fewer rows stay
// in the L2 whatever their type, and the forms of few rows have them in f32 alone.
inline constexpr int64_t kRoundedPartRowsMin = 257;

// Elements that a thread holds at once: 16 bytes of bf16, 32 of f32.
inline constexpr int kEight = 8;

// Norms. Of a block, whichever kernel it is of:
inline constexpr int kNormThreadsMax = 1024;
// Blocks of a row that is spread over a cluster; up to so many have whole warps alone.
inline constexpr int kNormSpreadMost = 8;
inline constexpr int kNormSpreadWhole = 4;
// A row that stays with one block is at most this many eights a thread.
inline constexpr int kNormWideEights = 4;
// Rows that a block has under way at once, and the bytes that it has for them: of its 227 KB.
inline constexpr int kNormStagesMax = 8;
inline constexpr int kNormRingBytes = 226 << 10;

// Columns of a row's codes that share a scale.
inline constexpr int kCodeBlock = 128;

// Swiglu: threads of a block, of few elements and of many.
inline constexpr int kSwigluThreadsFew = 64, kSwigluThreads = 256;

// Routing by warps: experts of a lane, tokens of a block.
inline constexpr int kWarpExperts = 12;
inline constexpr int kWarpExpertsMax = 32 * kWarpExperts;
inline constexpr int kRouteWarpsMax = 4;

}  // namespace baltoro::cuda
