#pragma once

#include <cstdint>

namespace baltoro {

// A physical KV block, in [0, num_blocks). Each rank holds the same block ids over its own memory.
enum class BlockId : int32_t {};

inline constexpr int32_t kBlockTokens = 64;

constexpr int32_t BlocksFor(int64_t tokens) {
  return static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace baltoro
