#pragma once

// An Eagle3 draft model (model-family §9): its config.json, and its weights under the names that
// K2Model asks for. A draft is a K2Model of one layer whose K2Config has a DraftShape.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/k2_config.h"
#include "weights/weight_source.h"

namespace baltoro {

// Layers of a model of so many, at least 8, behind which drafts read where nothing else is said.
std::vector<int32_t> UsualTaps(int32_t layers);

// From the draft's folder, for this target: what must be equal in both, the vocabulary and the
// hidden size, is compared, and the error names the key and both.
// The layers to tap are those of `eagle_config.eagle_aux_hidden_state_layer_ids` ("behind layer
// n"), or of a list of that name outside of eagle_config ("before layer n", as vLLM reads it), or
// those behind layers 1, L / 2 - 1 and L - 4 of the target's L. So are they where eagle_config has
// 2, L / 2 and L - 3, these layers as vLLM numbers them.
// Rotary positions are as the file says: of yarn, cos and sin are multiplied by
// `rope_scaling.attention_factor`, or by what follows from mscale and mscale_all_dim.
Result<K2Config> ReadDraftConfig(const std::string& dir, const K2Config& target);
// As above; `json` is the draft's config.json.
Result<K2Config> ParseDraftConfig(const Json& json, const K2Config& target);

// The weights of a draft's folder, the rows of heads of Llama's type in the order of
// HeadsAttentionArgs. What a draft may leave to its target, the embedding, comes from
// `target`, which must outlive the source.
Result<std::unique_ptr<WeightSource>> OpenDraftWeights(const std::string& dir,
                                                       const K2Config& draft,
                                                       WeightSource& target);

// For each token that the draft's head tells apart, the target's token: row i is i + d2t[i]. Empty:
// they are the same tokens. An error if one lies outside of the target's vocabulary.
Result<std::vector<int32_t>> ReadDraftTokens(const std::string& dir, const K2Config& draft);

}  // namespace baltoro
