#pragma once

// What attention reads beside weights: rotation, the cache, the sequences of a step.

#include <cstdint>
#include <span>

#include "tensor/kv_form.h"
#include "tensor/tensor_view.h"

namespace baltoro {

// Interleaved rotary embedding of pairs (0,1), (2,3)...; built once by the model from model-family
// §2.2.
struct RopeTable {
  const float* cos = nullptr;  // [positions, P/2], already multiplied by the yarn cos/sin factor
  const float* sin = nullptr;
  int64_t positions = 0;
  int64_t dim = 0;  // P
};

// One layer of the paged cache: [num_blocks, 64, token_bytes()], tokens in the form given: the
// normalised latent, then the rotated key. What attention computes with are the values that the
// form gives back; a backend may round them to the activation type.
struct KvLayerView {
  void* data = nullptr;
  KvForm form = KvForm::kBf16;
  int64_t num_blocks = 0;
  int64_t latent = 0, rope = 0;  // R, P
  float scale = 1;               // of kFp8: positive
  static constexpr int64_t kBlockTokens = 64;

  int64_t token_bytes() const { return KvTokenBytes(form, latent, rope); }
};

// One sequence of the step, as attention sees it.
struct AttentionSequence {
  int32_t query_begin = 0;  // rows [query_begin, query_begin + query_count) of q and out
  int32_t query_count = 0;
  int32_t first_position = 0;  // position of the first query token; the others follow
  int32_t absorbed_from =
      0;  // query tokens at positions >= this use the absorbed form, the others the expanded one
  std::span<const int32_t> blocks;  // physical blocks that hold keys
  std::span<const int32_t>
      block_positions;    // position of the first key of each; empty: block b starts at 64 b
  int32_t key_count = 0;  // valid keys, counted through `blocks` in order; a query sees those at
                          // positions <= its own
};

// What a step's attention is cut up by, the same for every layer.
struct AttentionPlanArgs {
  std::span<const AttentionSequence> sequences;  // query_count 0: padding, skipped
  int64_t tokens = 0;                            // T
  KvForm form = KvForm::kBf16;
  int32_t heads = 0, nope = 0, rope = 0, value = 0, latent = 0;
  // Of heads with keys of their own (HeadsAttentionArgs): their width, and how many heads keys
  // have; sequences then give no block_positions, and the four widths above are not read. 0:
  // latents.
  int32_t head_width = 0, key_heads = 0;
  // Whether sequences of such steps may give block_positions.
  bool gives_positions = true;
  // Blocks of the longest sequence that room is made for; plans of equal tokens, number of
  // sequences and blocks_max have their parts at the same places. 0: what the sequences need.
  int64_t blocks_max = 0;
  // Above 0: the keys of a query in absorbed form, or of one of few of a sequence, are summed in
  // parts that end at multiples of so many blocks, so that its result does not depend on the other
  // sequences. 0: as suits the step.
  int32_t part_blocks = 0;
};

}  // namespace baltoro
