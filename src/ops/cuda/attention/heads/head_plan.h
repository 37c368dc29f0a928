#pragma once

// What PlanAttention makes of a step of a draft model whose heads have keys of their own, and
// HeadAttention reads in its layer. Rows of attention are those that read the same key head: of a
// sequence's query tokens, h / g each, token after token.

#include <cstdint>

#include "ops/ops.h"

namespace baltoro::cuda {

// Rows of a tile: of sequences of few rows, whose keys are all that takes time, and of others.
inline constexpr int kHeadRowsFew = 16, kHeadRowsMany = 64;

// Rows [first, first + rows) of a sequence; no rows: no tile.
struct HeadTile {
  int32_t query_row = 0;  // of q and out: of the sequence's first token
  int32_t first = 0, rows = 0;
  int32_t first_position = 0;  // of the sequence's first token
  int32_t key_count = 0;
  int32_t table_row = 0;  // of the sequence's blocks
};

// Keys of a tile: blocks [begin, end) of its sequence.
struct HeadPart {
  int32_t tile = -1;  // -1: nothing to do
  int32_t begin = 0, end = 0;
  int32_t partial = -1;  // where its results wait to be merged; -1: there are no other parts
};

// A tile with several parts, which lie one behind the other.
struct HeadMerge {
  int32_t tile = -1;  // -1: nothing to do
  int32_t partial = 0, parts = 0;
};

// Tiles of one size. Arrays are on the device.
struct HeadWork {
  const HeadTile* tiles = nullptr;
  const HeadPart* parts = nullptr;
  const HeadMerge* merges = nullptr;
  int64_t part_count = 0, merge_count = 0;
  int64_t partials = 0;  // that there must be room for
};

// Lies in the staging memory of the step.
struct HeadPlan {
  int64_t tokens = 0;
  int32_t heads = 0, key_heads = 0, width = 0;
  const int32_t* block_table = nullptr;  // [sequences, table_stride] on the device
  int64_t table_stride = 0;
  HeadWork few, many;
};

const HeadPlan* PlanHeads(const OpContext& ctx, Arena& arena, const AttentionPlanArgs& args);

}  // namespace baltoro::cuda
