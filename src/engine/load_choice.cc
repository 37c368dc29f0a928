#include "engine/load_choice.h"

#include <fmt/format.h>

#include "model/kv_scales.h"

namespace baltoro {

Result<DType> ParseActivationType(const std::string& name) {
  if (name == "auto" || name == "bfloat16") return DType::kBf16;
  if (name == "float32" || name == "float") return DType::kF32;
  return InvalidArgument(fmt::format("--dtype is {}, expected auto, bfloat16 or float32", name));
}

Result<WeightChoice> ChooseWeights(const EngineConfig& config) {
  WeightChoice choice{.format = LoadFormat::kSafetensors,
                      .seed = config.seed,
                      .quantization = config.quantization,
                      .online_quantization = config.online_quantization};
  if (config.load_format == "dummy") {
    choice.format = LoadFormat::kDummy;
  } else if (config.load_format != "auto" && config.load_format != "safetensors") {
    return InvalidArgument(fmt::format("--load-format is {}, expected auto, safetensors or dummy",
                                       config.load_format));
  }
  return choice;
}

Result<std::vector<float>> ReadGivenKvScales(const EngineConfig& config, const K2Config& model) {
  if (config.kv_scale_file.empty()) return std::vector<float>();
  if (config.calculate_kv_scales) {
    return InvalidArgument(
        "--calculate-kv-scales and --quantization-param-path both say where scales come from: "
        "give one of them");
  }
  Result<std::vector<float>> scales =
      ReadKvScaleFile(config.kv_scale_file, model, config.tensor_parallel_size);
  if (scales.ok()) return scales;
  return Status(scales.status().code(), "--quantization-param-path " + scales.status().message());
}

}  // namespace baltoro
