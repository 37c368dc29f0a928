#pragma once

// Shapes of the attention half in one launch (resident_attention.cu), without CUDA.

namespace baltoro::cuda::resident {

inline constexpr int kBlocks = 132;  // of a launch: one a multiprocessor
inline constexpr int kRows = 8;      // tokens, at most
inline constexpr int kHidden = 7168, kQLora = 1536, kLatent = 512, kRope = 64, kNope = 128,
                     kValue = 128, kHeads = 8;
inline constexpr int kInputs = kQLora + kLatent + kRope;
inline constexpr int kHead = kNope + kRope;

}  // namespace baltoro::cuda::resident
