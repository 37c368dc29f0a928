#include "weights/quant_description.h"

#include <fmt/format.h>

#include "base/file.h"
#include "weights/checkpoint.h"
#include "weights/tensor_names.h"

namespace baltoro {
namespace {

// Keys that say something about the whole; every other one is a tensor.
constexpr std::string_view kHeaderKeys[] = {"version",       "model_quant_type", "metadata",
                                            "group_size",    "optional",         "kv_cache_type",
                                            "kv_quant_type", "fa_quant_type"};

bool IsHeaderKey(std::string_view key) {
  for (const std::string_view each : kHeaderKeys) {
    if (each == key) return true;
  }
  return key.ends_with(".quant_type");  // of activations inside attention
}

}  // namespace

Result<WeightForm> AscendForm(std::string_view type, std::string_view tensor) {
  for (const WeightForm form :
       {WeightForm::kBf16, WeightForm::kInt8Static, WeightForm::kInt8, WeightForm::kInt4}) {
    if (type == AscendType(form)) return form;
  }
  return InvalidArgument(
      fmt::format("{} has the type \"{}\", which is not known; known are FLOAT, W8A8, "
                  "W8A8_DYNAMIC and W4A8_DYNAMIC",
                  tensor, type.substr(0, 64)));
}

const char* AscendType(WeightForm form) {
  switch (form) {
    case WeightForm::kBf16:
      return "FLOAT";
    case WeightForm::kInt8Static:
      return "W8A8";
    case WeightForm::kInt8:
      return "W8A8_DYNAMIC";
    case WeightForm::kInt4:
      return "W4A8_DYNAMIC";
    case WeightForm::kF32:
    case WeightForm::kFp8Block:
    case WeightForm::kInt4Group:
      return nullptr;
  }
  return nullptr;
}

const WeightForm* QuantDescription::Find(std::string_view module) const {
  const auto found = forms.find(std::string(module) + ".weight");
  return found == forms.end() ? nullptr : &found->second;
}

Result<QuantDescription> ParseQuantDescription(const Json& json) {
  if (!json.is_object()) return InvalidArgument("not a JSON object");
  QuantDescription out;
  bool four_bits = false;
  for (const auto& [name, type] : json.items()) {
    if (IsHeaderKey(name)) continue;
    if (!type.is_string()) return InvalidArgument(name + ": the type is not a string");
    BT_ASSIGN_OR_RETURN(const WeightForm form,
                        AscendForm(type.get_ref<const std::string&>(), name));
    four_bits |= form == WeightForm::kInt4;
    if (!out.forms.emplace(CanonicalName(name), form).second) {
      return InvalidArgument(name + " is there twice");
    }
  }
  const auto group = json.find("group_size");
  if (four_bits && group != json.end() && *group != 0) {
    return InvalidArgument(fmt::format("group_size is {}; only 0 is known, a scale for each output",
                                       group->dump().substr(0, 32)));
  }
  return out;
}

Result<QuantDescription> ReadQuantDescription(const std::string& dir) {
  const std::string path = fmt::format("{}/{}", dir, kQuantDescriptionFile);
  if (!FileExists(path)) return QuantDescription();
  BT_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(path));
  auto description = ParseQuantDescription(json);
  if (!description.ok()) return InvalidArgument(path + ": " + description.status().message());
  return description;
}

}  // namespace baltoro
