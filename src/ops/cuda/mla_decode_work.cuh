#pragma once

// How a thread block walks its part of the plan. Every role (loading, both halves of the sums)
// walks on its own and sees the same pieces.

#include "ops/cuda/mla_decode_internal.h"

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
      : args_(args), part_(part), at_(args.plan.parts[part]), end_(args.plan.parts[part + 1]) {}

  __device__ bool Next(MlaPiece& piece) {
    for (;;) {
      if (at_.tile >= args_.plan.tiles) return false;
      if (at_.tile == end_.tile && at_.sequence == end_.sequence && at_.block == end_.block) {
        return false;
      }
      if (at_.sequence == args_.num_sequences) {
        at_ = {at_.tile + 1, 0, 0, 0};
        continue;
      }
      const int s = at_.sequence;
      const int first_query = __ldg(args_.sequences.query_begin + s);
      const int rows = (__ldg(args_.sequences.query_begin + s + 1) - first_query) * args_.heads;
      piece.tile_row = at_.tile * kMlaTileRows;
      if (rows <= piece.tile_row) {
        at_ = {at_.tile, s + 1, 0, 0};
        continue;
      }
      piece.sequence = s;
      piece.rows = min(rows - piece.tile_row, kMlaTileRows);
      piece.first_row = int64_t{first_query} * args_.heads + piece.tile_row;
      piece.key_count = __ldg(args_.sequences.key_count + s);
      const int blocks = (piece.key_count + kMlaBlockTokens - 1) / kMlaBlockTokens;
      piece.begin_block = at_.block;
      piece.end_block = blocks;
      const bool ends_here = at_.tile == end_.tile && s == end_.sequence;
      if (ends_here) piece.end_block = end_.block;
      if (args_.chunk_blocks > 0) {
        piece.end_block = min(piece.end_block, at_.block + args_.chunk_blocks);
      }
      piece.slot = -1;
      if (piece.begin_block > 0 || piece.end_block < blocks) {
        piece.slot = args_.chunk_blocks > 0
                         ? __ldg(args_.plan.chunk_slots + at_.tile * args_.num_sequences + s) +
                               piece.begin_block / args_.chunk_blocks
                         : 2 * part_ + (piece.begin_block == 0);
      }
      at_.block = piece.end_block;
      if (piece.end_block >= blocks) at_ = {at_.tile, s + 1, 0, 0};
      return true;
    }
  }

 private:
  const MlaKernelArgs& args_;
  const int part_;
  MlaPart at_;
  const MlaPart end_;
};

}  // namespace baltoro::cuda
