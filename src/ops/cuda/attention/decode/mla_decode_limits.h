#pragma once

// What a step of MLA decode is made for (mla_decode.h), without CUDA.

#include <cstdint>

#include "ops/gpu_limits.h"

namespace baltoro::cuda {

inline constexpr int kMlaLatent = kGpuLatent;
inline constexpr int kMlaWidth = 576;  // latent, then the rotated key
inline constexpr int kMlaBlockTokens = 64;
inline constexpr int kMlaMaxQueryTokens = 8;
inline constexpr int kMlaMaxHeads = 128;
inline constexpr int kMlaMaxSequences = kGpuSequencesMax;

// Query tokens times heads of a sequence are its rows, cut into tiles of 64.
inline constexpr int kMlaTileRows = 64;
inline constexpr int kMlaHeads8Rows = 8;  // the least that tile_rows is

// fp8 has one scale for the whole cache, kFp8Groups is KvForm's (656 bytes a token); the codes of
// NaN are read as +-480 or NaN.
enum class MlaCacheType { kBf16, kFp8E4m3, kFp8Groups };

// What is fixed when a graph is captured. Sizes the workspace.
struct MlaDecodeLimits {
  int heads = 0;             // of this rank, 1..128
  int sequences = 0;         // slots of the step, 1..4096; a slot without query tokens is skipped
  int max_query_tokens = 1;  // of one sequence, 1..8
  int multiprocessors = 0;   // that the kernel may use, at least 16
  MlaCacheType cache_type = MlaCacheType::kBf16;
  // 0: the context is cut so that every multiprocessor has the same work; how a row is summed
  // depends on the whole step. Above 0: sequences are cut at multiples of this many blocks and
  // nowhere else, so that a row's result is the same bit for bit whatever else is in the step.
  int chunk_blocks = 0;
  // With chunk_blocks: the most blocks of keys that all sequences of a step hold together.
  int64_t max_total_blocks = 0;
};

}  // namespace baltoro::cuda
