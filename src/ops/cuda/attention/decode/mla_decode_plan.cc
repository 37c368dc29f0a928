// How a step's work is cut into parts: PlanMlaDecodeOnHost.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "ops/cuda/attention/decode/mla_decode_internal.h"

namespace baltoro::cuda {
namespace {

// Costs in blocks of 64 keys, from measurements (docs/measured/cuda-mla.md).
constexpr int kPieceCost = 2;  // to begin and end a piece

constexpr int kClosed = -(1 << 30);  // room in a part that is not there

struct MlaPlanArgs {
  MlaPlan plan;
  const int32_t* query_begin;
  const int32_t* key_count;
  int sequences;
  int heads;
  int chunk_blocks;
  int least_piece;  // no smaller piece is cut off
  int overfill;     // a part takes this much more to finish a sequence
};

MlaPlanArgs PlanArgsOf(const MlaDecodeLimits& limits, void* workspace) {
  MlaPlanArgs args = {};
  const DecodePlan plan = ChooseDecode(limits);
  args.plan = CutMlaWorkspace(plan, workspace);
  args.sequences = limits.sequences;
  args.heads = limits.heads;
  args.chunk_blocks = limits.chunk_blocks;
  args.least_piece = plan.least_piece;
  args.overfill = plan.overfill;
  return args;
}

int TilesOf(const MlaPlanArgs& args, int sequence) {
  const int rows = (args.query_begin[sequence + 1] - args.query_begin[sequence]) * args.heads;
  return (rows + kMlaTileRows - 1) / kMlaTileRows;
}

// Walks the work once, filling parts of `capacity`; writes the plan if `write`. Returns the parts
// used, or more than there are.
int FillParts(const MlaPlanArgs& args,
              const int16_t* tiles,
              const int32_t* blocks,
              int capacity,
              bool write) {
  const MlaPlan& plan = args.plan;
  int part = -1;  // the part that is being filled
  int space = kClosed;
  int merges = 0;
  int64_t chunk_slot = 0;
  const auto open = [&](int tile, int sequence, int block) {
    ++part;
    space = capacity;
    if (write && part < plan.num_parts) {
      const int first_query = args.query_begin[sequence];
      const int rows = (args.query_begin[sequence + 1] - first_query) * args.heads;
      plan.parts[part] = {tile, sequence, block, first_query, rows, args.key_count[sequence], {}};
    }
  };
  for (int tile = 0; tile < plan.tiles; ++tile) {
    // The same tile of all sequences begins a part, so that parts of different tiles read the
    // same keys at about the same time.
    space = kClosed;
    for (int sequence = 0; sequence < args.sequences; ++sequence) {
      if (tiles[sequence] <= tile) continue;
      const int count = blocks[sequence];
      const int chunk = args.chunk_blocks > 0 ? args.chunk_blocks : std::max(count, 1);
      const int chunks = std::max((count + chunk - 1) / chunk, 1);
      int first_part = part, pieces = 0;
      for (int done = 0; done < count || pieces == 0;) {
        const int rest = std::min(count - done, chunk);
        if (rest + kPieceCost <= space + args.overfill ||
            (args.chunk_blocks > 0 && space == capacity)) {
          done += rest;
          space -= rest + kPieceCost;
          ++pieces;
          if (pieces == 1) first_part = part;
          continue;
        }
        const int fits = space - kPieceCost;
        if (args.chunk_blocks == 0 && fits >= args.least_piece) {
          const int take = std::min(fits, rest - args.least_piece);
          if (take >= args.least_piece) {
            done += take;
            ++pieces;
            if (pieces == 1) first_part = part;
          }
        }
        open(tile, sequence, done);
      }
      if (write && args.chunk_blocks > 0) {
        plan.chunk_slots[tile * args.sequences + sequence] = static_cast<int32_t>(chunk_slot);
        BT_CHECK(chunk_slot + chunks <= plan.slots);  // else max_total_blocks was not true
      }
      if (write && pieces > 1) {
        const int first_row = args.query_begin[sequence] * args.heads + tile * kMlaTileRows;
        const int rows = args.query_begin[sequence + 1] * args.heads - first_row;
        MlaMerge merge = {first_row, std::min(rows, kMlaTileRows), pieces, 0, 0, 0, 0, 0};
        if (args.chunk_blocks > 0) {
          merge.first_slot = static_cast<int32_t>(chunk_slot);
          merge.second_slot = merge.first_slot + 1;
          merge.stride = 1;
        } else {
          merge.first_slot = 2 * first_part + 1;
          merge.second_slot = 2 * (first_part + 1);
          merge.stride = 2;
        }
        plan.merges[++merges] = merge;
      }
      chunk_slot += chunks;
    }
  }
  if (write) {
    plan.merges[0].count = merges;
    // Sequences that have every tile, or none, are cut at the same places in each.
    bool alike = plan.tiles > 1;
    for (int s = 0; alike && s < args.sequences; ++s) {
      alike = tiles[s] == 0 || tiles[s] == plan.tiles;
    }
    plan.merges[0].tile_parts = alike ? (part + 1) / plan.tiles : 0;
    for (int rest = part + 1; rest <= plan.num_parts; ++rest) {
      plan.parts[rest] = {plan.tiles, 0, 0, 0, 0, 0, {}};
    }
  }
  return part + 1;
}

// The least capacity worth a try for work of `total` cost, and the step between tries: tries are
// least, least + step, .. kMlaTries of them, then as many from there with twice the step.
struct MlaCapacities {
  int least;
  int step;
};
constexpr int kMlaTries = 8;

MlaCapacities FirstCapacities(const MlaPlanArgs& args, int64_t total) {
  const int parts = args.plan.num_parts;
  const auto even = static_cast<int>((total + parts - 1) / parts);
  const int least = std::max(even, kPieceCost + args.least_piece);
  return {least, least / 64 > 1 ? least / 64 : 1};
}

}  // namespace

Status PlanMlaDecodeOnHost(const MlaDecodeLimits& limits,
                           const int32_t* query_begin,
                           const int32_t* key_count,
                           void* image) {
  BT_RETURN_IF_ERROR(MlaDecodePlanBytes(limits).status());
  MlaPlanArgs args = PlanArgsOf(limits, image);
  args.query_begin = query_begin;
  args.key_count = key_count;
  const auto count = static_cast<size_t>(limits.sequences);
  std::vector<int16_t> tiles(count);
  std::vector<int32_t> blocks(count);
  int64_t total = 0;
  for (size_t s = 0; s < count; ++s) {
    tiles[s] = static_cast<int16_t>(TilesOf(args, static_cast<int>(s)));
    blocks[s] = (key_count[s] + kMlaBlockTokens - 1) / kMlaBlockTokens;
    total += int64_t{tiles[s]} * (blocks[s] + kPieceCost);
  }
  const int parts = args.plan.num_parts;
  for (auto [capacity, step] = FirstCapacities(args, total);; step *= 2) {
    for (int i = 0; i < kMlaTries; ++i, capacity += step) {
      if (FillParts(args, tiles.data(), blocks.data(), capacity, false) > parts) continue;
      FillParts(args, tiles.data(), blocks.data(), capacity, true);
      return Status();
    }
  }
}

}  // namespace baltoro::cuda
