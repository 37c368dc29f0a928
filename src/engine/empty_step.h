#pragma once

// A step with which steps of its size are recorded: its rows write nothing, and nobody reads them.

#include <cstdint>
#include <vector>

#include "ops/attention.h"

namespace baltoro {

struct EmptyStep {
  // Of `sequences` sequences with `rows` rows each, which see `keys` keys.
  EmptyStep(int32_t sequences, int32_t rows, int64_t keys);
  EmptyStep(const EmptyStep&) = delete;  // its sequences borrow its blocks
  EmptyStep& operator=(const EmptyStep&) = delete;

  std::vector<int32_t> zeros;  // a row each: tokens, positions
  std::vector<int64_t> slots;  // likewise, -1
  std::vector<int32_t> blocks;
  std::vector<AttentionSequence> sequences;
};

}  // namespace baltoro
