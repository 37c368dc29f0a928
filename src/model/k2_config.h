#pragma once

// The shape of a model of the family, read from config.json: `kimi_k2`, `kimi_k25` (its
// text_config), `deepseek_v3`, `deepseek_v2`. A plain struct, so that tests and benchmarks can also
// build one in code; Validate() is run by everything that takes one.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "ops/ops.h"

namespace baltoro {

struct RopeConfig {
  double theta = 10000;
  bool yarn = false;
  double factor = 1;
  double beta_fast = 32, beta_slow = 1;
  double mscale = 1, mscale_all_dim = 0;
  int64_t original_positions = 4096;
};

// What makes a configuration that of an Eagle3 draft (model-family §9): one dense layer, whose
// attention reads an embedding beside the features that the target's layers leave.
struct DraftShape {
  // Layers of the target behind which it reads the residual stream, in the order in which `fc`
  // takes them.
  std::vector<int32_t> tap_layers;
  int64_t vocab = 0;  // that its head tells apart; less than the target's where it has a `d2t`
  // Of Llama's type: heads of this width, keys of so many; 0: latent attention. Then the widths of
  // latent attention above are those of what the cache keeps, keys and values: kv_lora = rope_dim =
  // key_heads * head_width.
  int64_t head_width = 0;
  int32_t key_heads = 0;
};

struct K2Config {
  std::string model_type = "kimi_k2";  // the outer one: kimi_k25 stays kimi_k25
  int64_t hidden = 0;
  int32_t layers = 0;
  int32_t heads = 0;
  int64_t q_lora = 0;  // 0: no low-rank query path, a plain q_proj
  int64_t kv_lora = 0;
  int64_t nope = 0, rope_dim = 0, value = 0;  // widths of one head
  int64_t intermediate = 0;                   // of dense layers
  int64_t moe_intermediate = 0;               // of one expert
  int32_t experts = 0;                        // 0: every layer is dense
  int32_t shared_experts = 0;                 // one MLP of this many times moe_intermediate
  int32_t dense_layers = 0;                   // the first layers that have no experts
  RouterParams router;                        // group_by_top2 is decided when weights are known
  bool router_has_bias = false;               // e_score_correction_bias is expected
  double norm_eps = 1e-6;
  // The two norms inside attention have their own epsilon in the vendor's code: the default of its
  // norm class, whatever rms_norm_eps says.
  double latent_norm_eps = 1e-6;
  RopeConfig rope;
  int64_t positions_max = 0;
  int64_t vocab = 0;
  bool tied_embeddings = false;
  bool multimodal = false;           // has a vision part, which is not loaded
  int32_t media_placeholder = -1;    // token that stands for image content
  int32_t bos = -1, pad = -1;        // -1: not given
  std::vector<int32_t> stop_tokens;  // union of config.json's and generation_config.json's eos
  std::optional<DraftShape> draft;   // of a draft model
  std::string quantization;          // quant_method of a quantised checkpoint; empty: none

  bool is_moe(int32_t layer) const { return experts > 0 && layer >= dense_layers; }
  int64_t head_dim() const { return nope + rope_dim; }
  bool has_heads() const { return draft && draft->head_width > 0; }  // with keys of their own
  int64_t rotated() const { return has_heads() ? draft->head_width : rope_dim; }  // of a head
  int64_t head_vocab() const { return draft ? draft->vocab : vocab; }  // columns of the logits
  // Values kept per token and layer: the latent and the rotated key.
  int64_t cache_width() const { return kv_lora + rope_dim; }

  // Every refusal names the key, what it said and what is expected.
  static Result<K2Config> Parse(const Json& config);
  // config.json and, where it exists, generation_config.json.
  static Result<K2Config> Read(const std::string& dir);
  // Adds the eos_token_id of a generation_config.json.
  Status AddGenerationConfig(const Json& generation);
  Status Validate() const;
};

// model-family §2.2.
double YarnMscale(double factor, double mscale);
// Softmax scale of attention, squared mscale included.
double SoftmaxScale(const K2Config& config);
// [rope_dim / 2] inverse frequencies.
std::vector<double> InverseFrequencies(const RopeConfig& rope, int64_t dim);
// What cos and sin are multiplied by; 1 whenever the two mscale keys are equal.
double RopeCosFactor(const RopeConfig& rope);

}  // namespace baltoro
