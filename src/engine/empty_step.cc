#include "engine/empty_step.h"

#include "cache/block_id.h"

namespace baltoro {

EmptyStep::EmptyStep(int32_t count, int32_t rows, int64_t keys)
    : zeros(static_cast<size_t>(count * rows)),
      slots(zeros.size(), -1),
      blocks(static_cast<size_t>(BlocksFor(keys))) {
  for (int32_t i = 0; i < count; ++i) {
    sequences.push_back({.query_begin = i * rows,
                         .query_count = rows,
                         .first_position = static_cast<int32_t>(keys) - 1,
                         .absorbed_from = 0,
                         .blocks = blocks,
                         .block_positions = {},
                         .key_count = static_cast<int32_t>(keys)});
  }
}

}  // namespace baltoro
