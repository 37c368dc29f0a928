#pragma once

// Absorbed MLA attention of a few query tokens a sequence over the paged latent cache, for decoding
// and verification. Every head reads the same keys: 576 cached elements a token, of which the first
// 512 (the latent) are the values too.
//
//   out[row, h] = sum_key softmax_key(scale * q[row, h] . key)_key * key[0:512]
//
// A step makes one plan on the host (PlanMlaDecodeOnHost: how the context is cut over the
// multiprocessors), which is copied to the device and used for every layer (MlaDecodePieces, then a
// merge: mla_decode_internal.h). Launches only queue work on the stream, allocate nothing, and read
// plan and lengths on the device, so they can be captured and replayed with others.
//
// Floor: bytes / read bandwidth, with bytes = sum over sequences of key_count * 576 * element size
// + rows * heads * (1152 + 1024); or FLOPs / matrix rate, with FLOPs = 2 * heads * 1088 * (keys
// seen), whichever is longer.

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "ops/cuda/attention/decode/mla_decode_limits.h"
#include "ops/cuda/launch/launch_stream.h"

namespace baltoro::cuda {

// One sequence's numbers, each [sequences] on the device.
struct MlaDecodeSequences {
  const int32_t* query_begin = nullptr;     // [sequences + 1]; rows of q and out, ascending
  const int32_t* key_count = nullptr;       // valid keys, through the block table in order
  const int32_t* first_position = nullptr;  // of its first query token; the others follow
  const int32_t* block_table = nullptr;     // [sequences, table_stride] physical blocks
  // [sequences, table_stride] position of the first key of each block; null: block b has 64 b. A
  // query token sees the keys at positions <= its own.
  const int32_t* block_positions = nullptr;
  int64_t table_stride = 0;
};

struct MlaDecodeArgs {
  void* out = nullptr;      // [rows, heads, 512] bf16; zeros where no key is seen
  float* lse = nullptr;     // optional [rows, heads]: natural log of the softmax sum, scale
                            // included; -inf where no key is seen
  const void* q = nullptr;  // [rows, heads, 576] bf16: absorbed latent part, then the rotated one
  int64_t rows = 0;         // of q and out; at least query_begin[sequences]
  const void* cache = nullptr;  // [num_blocks, 64, 576], or 656 bytes a token; 16-byte aligned
  float cache_scale = 1;        // of kFp8E4m3: element times this is the key
  int64_t num_blocks = 0;
  float scale = 0;  // of the scores, above 0
  MlaDecodeSequences sequences;
};

// Bytes of device memory that one plan and the partial results of one layer at a time need
// (256-byte aligned). kInvalidArgument names the limit that is out of range.
Result<size_t> MlaDecodeWorkspaceBytes(const MlaDecodeLimits& limits);

// The plan of lengths in host memory: fills `image`, which belongs at the workspace's start.
Result<size_t> MlaDecodePlanBytes(const MlaDecodeLimits& limits);
Status PlanMlaDecodeOnHost(const MlaDecodeLimits& limits,
                           const int32_t* query_begin,
                           const int32_t* key_count,
                           void* image);

}  // namespace baltoro::cuda
