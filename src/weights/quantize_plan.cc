#include "weights/quantize_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "weights/quant_description.h"

namespace baltoro {
namespace {

struct PartName {
  std::string_view name;
  std::vector<TensorRole> roles;
};

const std::vector<PartName>& PartNames() {
  static const std::vector<PartName> names = {
      {"attention", {TensorRole::kAttention, TensorRole::kKvB}},
      {"dense", {TensorRole::kDense}},
      {"shared", {TensorRole::kShared}},
      {"experts", {TensorRole::kExperts}},
  };
  return names;
}

WeightForm FormOf(QuantFormat format, TensorRole role) {
  switch (format) {
    case QuantFormat::kFp8:
      return WeightForm::kFp8Block;
    case QuantFormat::kInt4:
      return WeightForm::kInt4Group;
    case QuantFormat::kW4A8:
      // Static activation scales would have to be measured, so attention is dynamic here.
      if (role == TensorRole::kKvB) return WeightForm::kBf16;
      return role == TensorRole::kExperts ? WeightForm::kInt4 : WeightForm::kInt8;
  }
  return WeightForm::kBf16;
}

Status Refuse(const CheckpointTensor& tensor, std::string_view why) {
  return InvalidArgument(fmt::format("tensor {}: {}", tensor.stored_name, why));
}

// Whether a tensor of a projection is no plain weight (a packed matrix, a scale, codes).
bool IsOfQuantisedForm(const SourceTensor& tensor) {
  const std::string_view parameter = ParameterOf(tensor.name);
  if (parameter == "weight") {
    return tensor.dtype == DType::kF8E4M3 || tensor.dtype == DType::kI8;
  }
  return parameter.starts_with("weight_") || parameter.ends_with("_scale");
}

Status PlanTensor(const CheckpointTensor& source, WeightForm form, QuantizePlan& plan) {
  QuantizeStep step{.source = source, .form = form, .shape = {}, .outputs = {}};
  const SourceTensor& tensor = source.tensor;
  if (form == WeightForm::kBf16) {
    step.outputs.push_back(plan.tensors.size());
    plan.tensors.push_back({source.stored_name, tensor.dtype, tensor.shape});
    plan.steps.push_back(std::move(step));
    return {};
  }
  if (tensor.dtype != DType::kBf16) {
    return Refuse(source, fmt::format("is {}; only BF16 can be quantised", NameOf(tensor.dtype)));
  }
  if (tensor.shape.size() != 2) return Refuse(source, "is not a matrix");
  const std::string_view module = ModuleOf(source.stored_name);
  step.shape = ShapeOfProjection(module, tensor.shape[0], tensor.shape[1]);
  const Status fits = CheckShape(form, step.shape);
  if (!fits.ok()) return Refuse(source, fits.message());
  for (const FormTensor& made : TensorsOfForm(form, step.shape)) {
    step.outputs.push_back(plan.tensors.size());
    plan.tensors.push_back({fmt::format("{}.{}", module, made.parameter), made.dtype, made.shape});
  }
  plan.steps.push_back(std::move(step));
  return {};
}

// Whether a tensor is one that the format could have quantised, and has not.
bool IsLeftProjection(const QuantizeStep& step) {
  return step.form == WeightForm::kBf16 && step.source.tensor.name.ends_with(".weight") &&
         IsProjection(ModuleOf(step.source.tensor.name));
}

Json Fp8Config(const QuantizePlan& plan) {
  Json config = {{"activation_scheme", "dynamic"},
                 {"fmt", "e4m3"},
                 {"quant_method", "fp8"},
                 {"weight_block_size", {128, 128}}};
  // Readers take every projection for fp8 but those named here; experts count as one module.
  std::set<std::string> left;
  for (const QuantizeStep& step : plan.steps) {
    if (!IsLeftProjection(step)) continue;
    std::string_view module = ModuleOf(step.source.stored_name);
    const size_t experts = module.find(".mlp.experts.");
    if (experts != std::string_view::npos) {
      module = module.substr(0, experts + std::string_view(".mlp.experts").size());
    }
    left.emplace(module);
  }
  if (!left.empty()) config["modules_to_not_convert"] = left;
  return config;
}

Json Int4Config(const QuantizePlan& plan) {
  std::set<TensorRole> left;
  for (const QuantizeStep& step : plan.steps) {
    if (IsLeftProjection(step)) left.insert(RoleOf(step.source.tensor.name));
  }
  Json ignore = Json::array({"lm_head"});
  const auto add = [&](TensorRole role, const char* pattern) {
    if (left.count(role) > 0) ignore.push_back(pattern);
  };
  add(TensorRole::kAttention, "re:.*self_attn.*");
  add(TensorRole::kShared, "re:.*shared_experts.*");
  add(TensorRole::kDense, "re:.*mlp\\.(gate|up|gate_up|down)_proj.*");
  add(TensorRole::kExperts, "re:.*mlp\\.experts\\..*");
  const Json weights = {{"actorder", nullptr},
                        {"block_structure", nullptr},
                        {"dynamic", false},
                        {"group_size", 32},
                        {"num_bits", 4},
                        {"observer", "minmax"},
                        {"observer_kwargs", Json::object()},
                        {"strategy", "group"},
                        {"symmetric", true},
                        {"type", "int"}};
  return {{"config_groups",
           {{"group_0",
             {{"input_activations", nullptr},
              {"output_activations", nullptr},
              {"targets", Json::array({"Linear"})},
              {"weights", weights}}}}},
          {"format", "pack-quantized"},
          {"ignore", ignore},
          {"kv_cache_scheme", nullptr},
          {"quant_method", "compressed-tensors"},
          {"quantization_status", "compressed"}};
}

}  // namespace

Result<QuantFormat> ParseQuantFormat(std::string_view name) {
  if (name == "fp8") return QuantFormat::kFp8;
  if (name == "int4") return QuantFormat::kInt4;
  if (name == "w4a8") return QuantFormat::kW4A8;
  return InvalidArgument(fmt::format("format {}: not one of fp8, int4, w4a8", name));
}

Result<std::set<TensorRole>> ParseQuantParts(std::string_view list) {
  std::set<TensorRole> out;
  while (true) {
    const size_t comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    bool known = false;
    for (const PartName& part : PartNames()) {
      if (part.name != name) continue;
      known = true;
      out.insert(part.roles.begin(), part.roles.end());
    }
    if (!known) {
      return InvalidArgument(
          fmt::format("part {}: not one of attention, dense, shared, experts", name));
    }
    if (comma == std::string_view::npos) return out;
    list.remove_prefix(comma + 1);
  }
}

std::set<TensorRole> UsualParts(QuantFormat format) {
  if (format == QuantFormat::kInt4) return {TensorRole::kExperts};
  return {TensorRole::kAttention, TensorRole::kKvB, TensorRole::kDense, TensorRole::kShared,
          TensorRole::kExperts};
}

Result<QuantizePlan> PlanQuantize(const std::vector<CheckpointTensor>& source,
                                  QuantFormat format,
                                  const std::set<TensorRole>& parts) {
  QuantizePlan plan;
  bool any = false;
  for (const CheckpointTensor& each : source) {
    const std::string& name = each.tensor.name;
    if (IsProjection(ModuleOf(name)) && IsOfQuantisedForm(each.tensor)) {
      return Refuse(each,
                    "is of a matrix that is quantised already; a BF16 checkpoint is expected");
    }
    WeightForm form = WeightForm::kBf16;
    if (name.ends_with(".weight") && IsProjection(ModuleOf(name)) &&
        parts.count(RoleOf(name)) > 0) {
      form = FormOf(format, RoleOf(name));
    }
    any |= form != WeightForm::kBf16;
    BT_RETURN_IF_ERROR(PlanTensor(each, form, plan));
  }
  if (!any) return InvalidArgument("nothing to quantise: no matrix of the chosen parts is there");
  return plan;
}

Result<Json> QuantizedConfig(Json config, QuantFormat format, const QuantizePlan& plan) {
  if (!config.is_object()) return InvalidArgument("config.json: not an object");
  const auto text = config.find("text_config");
  const bool nested = text != config.end() && text->is_object();
  config.erase("quantization_config");
  if (nested) config["text_config"].erase("quantization_config");
  if (format == QuantFormat::kW4A8) return config;
  Json& target = nested ? config["text_config"] : config;
  target["quantization_config"] = format == QuantFormat::kFp8 ? Fp8Config(plan) : Int4Config(plan);
  return config;
}

std::string QuantDescriptionOf(const QuantizePlan& plan) {
  std::string out = "{\n";
  bool eight_bits = false;
  for (const QuantizeStep& step : plan.steps) {
    for (const size_t i : step.outputs) {
      out += "  ";
      AppendJsonString(out, plan.tensors[i].name);
      out += fmt::format(": \"{}\",\n", AscendType(step.form));
    }
    eight_bits |= step.form == WeightForm::kInt8;
  }
  // The tools that made this layout never name the 4-bit experts in model_quant_type.
  out += fmt::format(
      "  \"version\": \"1.0.0\",\n  \"model_quant_type\": \"{}\",\n  \"metadata\": {{}},\n"
      "  \"group_size\": 0,\n  \"optional\": {{}}\n}}\n",
      eight_bits ? "W8A8_DYNAMIC" : "FLOAT");
  return out;
}

}  // namespace baltoro
