#pragma once

// What the kernels of MLA decoding share.
//
// Query tokens times heads of a sequence are its rows, cut into tiles of 64. The work of a step is
// the list of (tile, sequence, block of keys), in that order; a part, the work of one thread block,
// is a run of it. A run of one sequence's blocks in one tile within one part is a piece. A (tile,
// sequence) of one piece is written to the output; pieces of one that has several go to slots, and
// an entry of the merge list says which.

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "ops/cuda/attention/decode/mla_decode.h"
#include "ops/cuda/choose/attention.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// Where a part begins, and what is asked first about the sequence there.
struct alignas(16) MlaPart {
  int32_t tile;
  int32_t sequence;
  int32_t block;
  int32_t first_query;
  int32_t rows;  // of the sequence
  int32_t key_count;
  int32_t unused[2];
};

struct alignas(16) MlaMerge {
  int32_t first_row;    // of the tile, in [rows * heads]
  int32_t rows;         // of the tile that exist
  int32_t count;        // of pieces
  int32_t first_slot;   // of the first piece
  int32_t second_slot;  // of the second; the others follow at `stride`
  int32_t stride;
  int32_t tile_parts;  // of the first entry: parts of each of several tiles cut alike, or 0
  int32_t unused;
};

struct MlaPlan {
  MlaPart* parts;        // [num_parts + 1]: begins; a part's end is the next one's begin
  MlaMerge* merges;      // [1 + max_merges]; the first holds the count of the others, tile_parts
  int32_t* chunk_slots;  // [tiles * sequences] first slot of each, only with chunk_blocks
  float* partial_lse;    // [slots, tile_rows], in log2
  float* partial_out;    // [slots, tile_rows, 512]
  int num_parts;
  int tiles;      // of one sequence, at most
  int tile_rows;  // of a tile that can be used: 8, 16, .. 64
  int64_t slots;
  int64_t max_merges;
  size_t plan_bytes;  // of the arrays before the partial results
  size_t bytes;
};

// The cache as memory that a launch touches (launch/order.h).
inline Region CacheOf(const MlaDecodeArgs& args, MlaCacheType type) {
  const int64_t token_bytes = type == MlaCacheType::kBf16 ? kMlaWidth * 2 : kMlaWidth;
  return {args.cache, args.num_blocks * kMlaBlockTokens * token_bytes};
}

// Cuts up a workspace (null: only the sizes).
MlaPlan CutMlaWorkspace(const DecodePlan& plan, void* workspace);

// Everything but the tensor maps that the attention kernel and the merge need.
struct MlaKernelArgs {
  MlaPlan plan;
  MlaDecodeSequences sequences;
  int num_sequences;
  int heads;
  int chunk_blocks;
  bool early_keys;
  MlaCacheType cache_type;
  float scale_log2;  // softmax scale times log2(e), cache scale included
  float out_scale;   // cache scale
  void* out;
  float* lse;
  const void* cache;
};

// By the plan, whose pieces are in args.
Status LaunchMlaAttention(const DecodePlan& plan,
                          const MlaKernelArgs& args,
                          const MlaDecodeArgs& from,
                          const LaunchStream& stream);
// DecodeWay::kFp8Rows8.
Status LaunchMlaHeads8Fp8(const MlaKernelArgs& args,
                          const MlaDecodeArgs& from,
                          const LaunchStream& stream);
// How its keys are copied (mla_decode_heads8_fp8_device.cuh): blocks of latents, and of rotated
// columns.
Status MakeFp8KeyMaps(const void* data,
                      int64_t num_blocks,
                      CUtensorMap& latent_map,
                      CUtensorMap& rope_map);
// DecodeWay::kBf16Rows8.
Status LaunchMlaHeads8Bf16(const MlaKernelArgs& args,
                           const MlaDecodeArgs& from,
                           const LaunchStream& stream);
// MergeWay::kQuarters and kRows.
Status LaunchMlaMerge(const MergePlan& plan, const MlaKernelArgs& args, const LaunchStream& stream);

// The attention of one layer to pieces of its keys, with the plan that `workspace` holds for the
// same limits and lengths; returns what LaunchMlaMerge, or another that merges, is to be given.
// Elements of blocks at and beyond key_count have no influence, whatever they are.
Result<MlaKernelArgs> MlaDecodePieces(const DecodePlan& plan,
                                      const MlaDecodeLimits& limits,
                                      const MlaDecodeArgs& args,
                                      void* workspace,
                                      const LaunchStream& stream);

}  // namespace baltoro::cuda
