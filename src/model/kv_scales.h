#pragma once

// The scales of a KV cache in KvForm::kFp8, one f32 a layer (model-family §4). Every scale that is
// returned is finite and positive; what is not is refused by its name.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/status.h"
#include "model/k2_model.h"
#include "weights/weight_source.h"

namespace baltoro {

// The key scales that a checkpoint brings ("...self_attn.attn.k_scale", "...self_attn.k_scale",
// "...self_attn.k_proj.k_scale" or "kv_scale" for these), f32 or bf16. Empty: it brings none. Some
// layers only is an error. Scales of values are not used: the latent serves as both.
Result<std::vector<float>> ReadKvScales(WeightSource& source, int32_t layers);

// Scales from the model itself (--calculate-kv-scales): the largest magnitude that each layer
// writes for 256 tokens spread over the vocabulary, over 200, so that twice as much still fits. The
// same model gives the same scales. kInternal if a layer writes what is not finite.
//
// Ranks measure together: `meet` returns when all of them have called it (empty: there is one
// rank), and is called before they exchange anything and after, as none may take or free memory of
// a GPU while another waits for it.
Result<std::vector<float>> MeasureKvScales(K2Model& model,
                                           const std::function<Status()>& meet = {});

// A file of --quantization-param-path:
//   {"model_type": "kimi_k2", "kv_cache": {"dtype": "float8_e4m3fn",
//    "scaling_factor": {"0": {"0": 0.01, "1": 0.02, ...}, ...}}}
// with every rank 0 .. ranks - 1, and in each every layer. Ranks keep the same latents, so theirs
// must agree; model_type may be left out.
Result<std::vector<float>> ReadKvScaleFile(const std::string& path,
                                           const K2Config& config,
                                           int32_t ranks);

}  // namespace baltoro
