#include "plan/model_description.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <unordered_set>

#include "base/file.h"
#include "base/json.h"
#include "weights/quant_description.h"

namespace baltoro {
namespace {

K2Config FamilyShape() {
  K2Config c;
  c.heads = 64;
  c.hidden = 7168;
  c.layers = 61;
  c.q_lora = 1536;
  c.kv_lora = 512;
  c.nope = 128;
  c.rope_dim = 64;
  c.value = 128;
  c.intermediate = 18432;
  c.moe_intermediate = 2048;
  c.experts = 384;
  c.shared_experts = 1;
  c.dense_layers = 1;
  c.router.experts = 384;
  c.router.top_k = 8;
  c.positions_max = 131072;
  c.vocab = 163840;
  return c;
}

K2Config DeepSeekV3Shape() {
  K2Config c = FamilyShape();
  c.model_type = "deepseek_v3";
  c.heads = 128;
  c.experts = c.router.experts = 256;
  c.dense_layers = 3;
  c.vocab = 129280;
  c.positions_max = 163840;
  return c;
}

K2Config SmallShape(const char* type, int64_t intermediate, int64_t vocab, int64_t positions) {
  K2Config c = FamilyShape();
  c.model_type = type;
  c.heads = 16;
  c.hidden = 2048;
  c.layers = 27;
  c.q_lora = 0;
  c.intermediate = intermediate;
  c.moe_intermediate = 1408;
  c.experts = c.router.experts = 64;
  c.router.top_k = 6;
  c.shared_experts = 2;
  c.vocab = vocab;
  c.positions_max = positions;
  return c;
}

std::string OwnerOf(const std::string& name) {
  return name.starts_with("DeepSeek") ? "deepseek-ai" : "moonshotai";
}

ModelDescription Fp8(std::string name, K2Config config) {
  const WeightForm f = WeightForm::kFp8Block;
  std::string owner = OwnerOf(name);
  return {.name = std::move(name),
          .owner = std::move(owner),
          .config = std::move(config),
          .attention = f,
          .kv_b = f,
          .dense = f,
          .shared = f,
          .experts = f};
}

ModelDescription Plain(std::string name, K2Config config) {
  std::string owner = OwnerOf(name);
  return {.name = std::move(name), .owner = std::move(owner), .config = std::move(config)};
}

}  // namespace

std::vector<ModelDescription> KnownModels() {
  K2Config long_k2 = FamilyShape();
  long_k2.positions_max = 262144;
  K2Config k25 = long_k2;
  k25.model_type = "kimi_k25";
  k25.multimodal = true;

  ModelDescription thinking = Plain("Kimi-K2-Thinking", long_k2);
  thinking.experts = WeightForm::kInt4Group;
  ModelDescription seen = Plain("Kimi-K2.5", k25);
  seen.experts = WeightForm::kInt4Group;
  ModelDescription newer = seen;
  newer.name = "Kimi-K2.6";
  ModelDescription w4a8 = seen;
  w4a8.name = "Kimi-K2.5-W4A8";
  w4a8.owner = "Eco-Tech";
  w4a8.attention = WeightForm::kInt8Static;
  w4a8.dense = w4a8.shared = WeightForm::kInt8;
  w4a8.experts = WeightForm::kInt4;
  return {Fp8("Kimi-K2-Instruct", FamilyShape()),
          Fp8("Kimi-K2-Instruct-0905", long_k2),
          Fp8("Kimi-K2-Base", FamilyShape()),
          thinking,
          seen,
          newer,
          w4a8,
          Fp8("DeepSeek-V3", DeepSeekV3Shape()),
          Fp8("DeepSeek-R1", DeepSeekV3Shape()),
          Plain("DeepSeek-V2-Lite", SmallShape("deepseek_v2", 10944, 102400, 163840)),
          Plain("Moonlight-16B-A3B", SmallShape("deepseek_v3", 11264, 163840, 8192))};
}

namespace {

std::string Lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

Result<Json> ReadJson(const std::filesystem::path& path) {
  if (!FileExists(path.string())) return Json();
  return ReadJsonFile(path.string());
}

}  // namespace

Result<ModelDescription> DescribeFiles(const K2Config& config,
                                       const Json& index,
                                       const Json& quantisation) {
  ModelDescription out;
  out.config = config;
  std::unordered_set<std::string> names;
  if (index.is_object() && index.contains("weight_map") && index["weight_map"].is_object()) {
    for (const auto& [name, file] : index["weight_map"].items()) names.insert(name);
    const Json metadata = index.value("metadata", Json::object());
    if (metadata.is_object() && metadata.contains("total_size") &&
        metadata["total_size"].is_number()) {
      out.file_bytes = metadata["total_size"].get<int64_t>();
    }
  }
  // How the files name a tensor; the index decides, without one the configuration does.
  std::string prefix = config.multimodal ? "language_model." : "";
  if (!names.empty() && names.count(prefix + "model.norm.weight") == 0) {
    prefix = prefix.empty() ? "language_model." : "";
  }
  const auto form = [&](const std::string& module, bool routed) -> Result<WeightForm> {
    const std::string base = prefix + module;
    if (quantisation.is_object()) {
      const std::string key = base + ".weight";
      if (!quantisation.contains(key) || !quantisation[key].is_string()) {
        return InvalidArgument("quant_model_description.json: no entry for " + key);
      }
      const auto known = AscendForm(quantisation[key].get<std::string>(), key);
      if (!known.ok()) {
        return InvalidArgument("quant_model_description.json: " + known.status().message());
      }
      return known;
    }
    if (!names.empty()) {
      if (names.count(base + ".weight_packed") > 0) return WeightForm::kInt4Group;
      if (names.count(base + ".weight_scale_inv") > 0) return WeightForm::kFp8Block;
      if (names.count(base + ".weight") > 0) return WeightForm::kBf16;
      return InvalidArgument("the index names neither " + base + ".weight nor a quantised form");
    }
    if (config.quantization == "fp8") return WeightForm::kFp8Block;
    if (config.quantization == "compressed-tensors" && routed) return WeightForm::kInt4Group;
    return WeightForm::kBf16;
  };
  const int32_t last = config.layers - 1;  // an expert layer, if there are any
  const std::string layer = fmt::format("model.layers.{}.", last);
  BT_ASSIGN_OR_RETURN(out.attention, form(layer + "self_attn.o_proj", false));
  BT_ASSIGN_OR_RETURN(out.kv_b, form(layer + "self_attn.kv_b_proj", false));
  if (config.dense_layers > 0 || config.experts == 0) {
    BT_ASSIGN_OR_RETURN(out.dense, form("model.layers.0.mlp.down_proj", false));
  }
  if (config.is_moe(last)) {
    BT_ASSIGN_OR_RETURN(out.experts, form(layer + "mlp.experts.0.down_proj", true));
    if (config.shared_experts > 0) {
      BT_ASSIGN_OR_RETURN(out.shared, form(layer + "mlp.shared_experts.down_proj", false));
    }
  }
  return out;
}

std::string_view MethodOf(const ModelDescription& model) {
  std::string_view method;
  for (const WeightForm form :
       {model.attention, model.kv_b, model.dense, model.shared, model.experts}) {
    switch (form) {
      case WeightForm::kInt8Static:
      case WeightForm::kInt8:
      case WeightForm::kInt4:
        return "ascend";
      case WeightForm::kInt4Group:
        method = "compressed-tensors";
        break;
      case WeightForm::kFp8Block:
        method = "fp8";
        break;
      default:
        break;
    }
  }
  return method;
}

void QuantiseOnline(ModelDescription& model) {
  for (WeightForm* form : {&model.attention, &model.dense, &model.shared}) {
    if (*form == WeightForm::kBf16) *form = WeightForm::kFp8Block;
  }
}

Result<ModelDescription> DescribeModel(const std::string& model) {
  const std::filesystem::path dir = model;
  if (FileExists(dir / "config.json")) {
    BT_ASSIGN_OR_RETURN(const K2Config config, K2Config::Read(model));
    BT_ASSIGN_OR_RETURN(Json index, ReadJson(dir / "model.safetensors.index.json"));
    if (index.is_null()) {
      BT_ASSIGN_OR_RETURN(index, ReadJson(dir / "quant_model_weights.safetensors.index.json"));
    }
    BT_ASSIGN_OR_RETURN(const Json quantisation, ReadJson(dir / "quant_model_description.json"));
    BT_ASSIGN_OR_RETURN(ModelDescription out, DescribeFiles(config, index, quantisation));
    out.name = model;
    return out;
  }
  const std::string wanted = Lower(std::string_view(model).substr(model.rfind('/') + 1));
  std::vector<std::string> names;
  for (ModelDescription& known : KnownModels()) {
    if (Lower(known.name) == wanted) return std::move(known);
    names.push_back(known.name);
  }
  return InvalidArgument(
      fmt::format("{}: no directory with a config.json, and not a known model; known are {}", model,
                  fmt::join(names, ", ")));
}

}  // namespace baltoro
