#pragma once

// How a thread block walks its part of the plan: every role (loading, both halves of the sums)
// walks on its own and sees the same pieces. And how rows that were cut are found.

#include "ops/cuda/attention/decode/mla_decode_internal.h"

namespace baltoro::cuda {

struct MlaPiece {
  int sequence;
  int begin_block;  // in the sequence's block table
  int end_block;
  int key_count;
  int64_t first_row;  // of the tile, in [rows * heads]
  int rows;           // of the tile that exist, 1..64
  int tile_row;       // of the tile's first row among the sequence's rows
  int slot;           // for a partial result; -1: the piece is all of it
};

class MlaWalker {
 public:
  __device__ MlaWalker(const MlaKernelArgs& args, int part)
      : args_(args),
        part_(part),
        begin_(args.plan.parts[part]),
        end_(args.plan.parts[part + 1]),
        tile_(begin_.tile),
        sequence_(begin_.sequence),
        block_(begin_.block) {}

  __device__ bool Next(MlaPiece& piece) {
    for (;; GoOn()) {
      if (tile_ >= args_.plan.tiles) return false;
      const bool at_end = tile_ == end_.tile && sequence_ == end_.sequence;
      if (at_end && block_ == end_.block) return false;
      if (sequence_ == args_.num_sequences) continue;
      int first_query = begin_.first_query, rows = begin_.rows, keys = begin_.key_count;
      if (!first_) {
        first_query = __ldg(args_.sequences.query_begin + sequence_);
        rows = (__ldg(args_.sequences.query_begin + sequence_ + 1) - first_query) * args_.heads;
        keys = __ldg(args_.sequences.key_count + sequence_);
      }
      first_ = false;
      if (rows <= tile_ * kMlaTileRows) continue;
      piece.sequence = sequence_;
      piece.tile_row = tile_ * kMlaTileRows;
      piece.rows = min(rows - piece.tile_row, kMlaTileRows);
      piece.first_row = int64_t{first_query} * args_.heads + piece.tile_row;
      piece.key_count = keys;
      const int blocks = (keys + kMlaBlockTokens - 1) / kMlaBlockTokens;
      piece.begin_block = block_;
      piece.end_block = at_end ? end_.block : blocks;
      if (args_.chunk_blocks > 0) {
        piece.end_block = min(piece.end_block, block_ + args_.chunk_blocks);
      }
      piece.slot = -1;
      if (block_ > 0 || piece.end_block < blocks) {
        piece.slot = args_.chunk_blocks > 0
                         ? __ldg(args_.plan.chunk_slots + tile_ * args_.num_sequences + sequence_) +
                               block_ / args_.chunk_blocks
                         : 2 * part_ + (block_ == 0);
      }
      block_ = piece.end_block;
      if (block_ >= blocks) GoOn();
      return true;
    }
  }

 private:
  __device__ void GoOn() {
    block_ = 0;
    if (sequence_ == args_.num_sequences) {
      ++tile_;
      sequence_ = 0;
    } else {
      ++sequence_;
    }
  }

  const MlaKernelArgs& args_;
  const int part_;
  const MlaPart begin_, end_;
  int tile_, sequence_, block_;
  bool first_ = true;
};

// take(merge) by the entry of the merge list that has this row, by a whole warp; false: the row was
// not cut.
template <typename Take>
__device__ __forceinline__ bool FindMerge(const MlaPlan& plan, int row, const Take& take) {
  const int lane = threadIdx.x % 32;
  const int count = plan.merges[0].count;
  for (int begin = 0; begin < count; begin += 32) {
    bool mine = false;
    if (begin + lane < count) {
      const MlaMerge& merge = plan.merges[1 + begin + lane];
      mine = row >= merge.first_row && row < merge.first_row + merge.rows;
    }
    const uint32_t ballot = __ballot_sync(~0u, mine);
    if (ballot == 0) continue;
    take(plan.merges[begin + __ffs(static_cast<int>(ballot))]);
    return true;
  }
  return false;
}

}  // namespace baltoro::cuda
