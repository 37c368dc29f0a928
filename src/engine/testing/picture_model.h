#pragma once

// A tiny model of the family that reads pictures, and prompts with pictures for it.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "request/request.h"

namespace baltoro::test {

inline constexpr TokenId kPlaceholder = 89;
inline constexpr int32_t kPatchBytes = 3 * 14 * 14;

// Of a model that its folder needs nothing beside, with dummy weights.
inline constexpr const char* kPictureModel = R"({
  "model_type": "kimi_k25", "architectures": ["KimiK25ForConditionalGeneration"],
  "media_placeholder_token_id": 89,
  "text_config": {
    "model_type": "kimi_k2", "hidden_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 2, "q_lora_rank": 64, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "intermediate_size": 192,
    "moe_intermediate_size": 64, "n_routed_experts": 8, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_experts_per_tok": 3, "n_group": 1, "topk_group": 1,
    "norm_topk_prob": true, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
    "routed_scaling_factor": 2.0, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "max_position_embeddings": 4096, "vocab_size": 90, "hidden_act": "silu",
    "tie_word_embeddings": false},
  "vision_config": {
    "init_pos_emb_height": 8, "init_pos_emb_time": 4, "init_pos_emb_width": 8,
    "merge_kernel_size": [2, 2], "merge_type": "sd2_tpool", "mm_hidden_size": 64,
    "mm_projector_type": "patchmerger", "patch_size": 14, "pos_emb_type": "divided_fixed",
    "projector_hidden_act": "gelu", "projector_ln_eps": 1e-05, "text_hidden_size": 128,
    "video_attn_type": "spatial_temporal", "vt_hidden_size": 64, "vt_intermediate_size": 96,
    "vt_num_attention_heads": 4, "vt_num_hidden_layers": 3}})";

// Noise, another of each seed.
inline RequestPicture MakePicture(int seed, int32_t rows, int32_t columns) {
  RequestPicture picture;
  picture.rows = rows;
  picture.columns = columns;
  picture.count = rows * columns / 4;
  std::string pixels(static_cast<size_t>(rows * columns * kPatchBytes), 0);
  uint32_t state = static_cast<uint32_t>(seed) * 2654435761u + 1;
  for (char& byte : pixels) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  picture.hash = {static_cast<uint8_t>(seed), static_cast<uint8_t>(rows),
                  static_cast<uint8_t>(columns)};
  picture.pixels = std::move(pixels);
  return picture;
}

// Ten tokens of text before each picture, and as many at the end.
inline Request MakeRequest(uint64_t id, std::vector<RequestPicture> pictures) {
  Request request;
  request.id = RequestId{id};
  const auto add_text = [&](int count) {
    for (int i = 0; i < count; ++i) {
      request.prompt.push_back(static_cast<TokenId>((request.prompt.size() * 7 + 3) % 80));
    }
  };
  for (RequestPicture& picture : pictures) {
    add_text(10);
    picture.begin = static_cast<int32_t>(request.prompt.size());
    request.prompt.insert(request.prompt.end(), static_cast<size_t>(picture.count), kPlaceholder);
  }
  add_text(10);
  request.pictures = std::move(pictures);
  request.sampling.temperature = 0;
  request.sampling.logprobs = 0;
  request.stop.max_tokens = 6;
  return request;
}

}  // namespace baltoro::test
