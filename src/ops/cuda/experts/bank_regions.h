#pragma once

// What the launches of an expert bank touch (launch/order.h). Sorted entries are read ahead of a
// wait by the products behind gate/up: whether they are complete then, the order of launches says.

#include <algorithm>

#include "ops/cuda/experts/bank_internal.h"
#include "ops/cuda/experts/route/bank_prepare.h"
#include "ops/cuda/launch/regions.h"

namespace baltoro::cuda {

// One of the two counters from which blocks take work.
inline Region CounterOf(const uint32_t* counters, int which) {
  return counters == nullptr ? Region{} : RegionOf(counters + which, 1);
}

// Of a bank of INT4.
struct Int4BankRegions {
  const MoeShape& shape;
  const MoeInt4Args& args;
  const MoeWorkspace& space;

  int64_t tokens() const { return args.tokens; }
  int64_t entries() const { return tokens() * shape.top_k; }
  // Sorted entries without their counters: one piece (CutMoeWorkspace).
  Region sorted() const {
    const auto* const begin = reinterpret_cast<const char*>(space.num_tiles);
    return {begin, reinterpret_cast<const char*>(space.counters) - begin};
  }
  Region counters() const { return RegionOf(space.counters, 2 * kMaxSumChunks); }
  Region ids() const { return RegionOf(args.ids, entries()); }
  Region weights() const { return RegionOf(args.weights, entries()); }
  Region x() const {
    return RowsRegion(args.x, tokens(), args.x_stride * 2, int64_t{shape.hidden} * 2);
  }
  // In matrix order, the bank's own or as it is given.
  Region ordered() const {
    return RegionOf(args.ordered != nullptr ? args.ordered : space.ordered,
                    tokens() * shape.hidden);
  }
  Region middle() const { return RegionOf(space.middle, entries() * shape.intermediate); }
  Region shares() const { return RegionOf(space.shares, entries() * shape.hidden); }
  Region out() const {
    const bool bf16 = args.rounded_out != nullptr;
    const void* const to = bf16 ? static_cast<const void*>(args.rounded_out) : args.out;
    const int64_t size = bf16 ? 2 : 4;
    return RowsRegion(to, tokens(), args.out_stride * size, shape.hidden * size);
  }
  // The shared experts' first product, gate and up.
  Region shared() const {
    return RowsRegion(args.shared, tokens(), args.shared_stride * 2,
                      int64_t{args.shared_intermediate} * 4);
  }
};

inline Region InputOf(const DigitRows& rows, int64_t tokens) {
  return RowsRegion(rows.x, tokens, rows.x_stride * 2, int64_t{rows.hidden} * 2);
}
inline Regions MadeBy(const DigitRows& rows, int64_t tokens) {
  return {RegionOf(rows.digits, rows.digits == nullptr ? 0 : tokens * 2 * rows.hidden),
          RegionOf(rows.row_scales, tokens)};
}
inline Region InputOf(const MoeGated& gated, int64_t tokens) {
  return RowsRegion(gated.x, tokens, gated.x_stride * 2, int64_t{gated.width} * 4);
}
inline Regions MadeBy(const MoeGated& gated, int64_t tokens) {
  return {RegionOf(gated.out, tokens * gated.width), RegionOf(gated.codes, tokens * gated.width),
          RegionOf(gated.scales, tokens * gated.width / 128)};
}

// Of a bank of other forms: sorted entries without their counters.
inline Regions SortedOf(const MoeRows& rows) {
  const int64_t entries = int64_t{rows.tokens} * rows.top_k, slots = rows.slots;
  const int64_t tiles = std::min(slots, entries) + entries / rows.tile_rows;
  return {RegionOf(rows.num_tiles, 1),
          RegionOf(rows.tiles, tiles),
          RegionOf(rows.starts, rows.blocks + 1),
          RegionOf(rows.order, entries),
          RegionOf(rows.units, slots + 1),
          RegionOf(rows.row_begin, slots + 1),
          RegionOf(rows.block_of, slots + 1)};
}

}  // namespace baltoro::cuda
