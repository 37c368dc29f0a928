#include "weights/quantization_claim.h"

#include <fmt/format.h>
#include <regex.h>

namespace baltoro {

// One entry of a list of modules that are not quantised: a name, the beginning of names, or a
// regular expression that a name begins with.
struct QuantizationClaim::Pattern {
  struct Free {
    void operator()(regex_t* expression) const {
      regfree(expression);
      delete expression;
    }
  };
  std::string name;  // empty: an expression
  std::unique_ptr<regex_t, Free> expression;

  bool Matches(const std::string& module) const {
    if (expression) return regexec(expression.get(), module.c_str(), 0, nullptr, 0) == 0;
    return module == name ||
           (module.starts_with(name) && module.size() > name.size() && module[name.size()] == '.');
  }
};

QuantizationClaim::QuantizationClaim() = default;
QuantizationClaim::~QuantizationClaim() = default;
QuantizationClaim::QuantizationClaim(QuantizationClaim&&) noexcept = default;
QuantizationClaim& QuantizationClaim::operator=(QuantizationClaim&&) noexcept = default;

namespace {

// The quantization_config, from text_config where that has one; null: none.
const Json* FindConfig(const Json& config) {
  if (!config.is_object()) return nullptr;
  const auto find = [](const Json& object) -> const Json* {
    const auto found = object.find("quantization_config");
    return found == object.end() || found->is_null() ? nullptr : &*found;
  };
  const auto text = config.find("text_config");
  if (text != config.end() && text->is_object()) {
    if (const Json* nested = find(*text)) return nested;
  }
  return find(config);
}

// A key's value as text, "" where it is absent.
std::string TextOf(const Json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end()) return "";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

Status Expect(const Json& object, const char* key, std::string_view wanted) {
  const std::string text = TextOf(object, key);
  if (text.empty() || text == wanted) return {};
  return InvalidArgument(
      fmt::format("quantization_config: {} is {}; known is {}", key, text.substr(0, 64), wanted));
}

}  // namespace

Result<QuantizationClaim> QuantizationClaim::Read(const Json& config,
                                                  QuantDescription description) {
  return Read(config, std::make_shared<const QuantDescription>(std::move(description)));
}

Result<QuantizationClaim> QuantizationClaim::Read(
    const Json& config, std::shared_ptr<const QuantDescription> description) {
  QuantizationClaim claim;
  claim.description_ = std::move(description);
  const Json* quantization = FindConfig(config);
  if (quantization == nullptr) return claim;
  if (!quantization->is_object()) return InvalidArgument("quantization_config: not an object");
  if (!claim.description_->forms.empty()) {
    return InvalidArgument(fmt::format("quantization_config is there beside {}; only one can hold",
                                       kQuantDescriptionFile));
  }
  const std::string method = TextOf(*quantization, "quant_method");
  if (method == "fp8") {
    BT_RETURN_IF_ERROR(claim.ReadFp8(*quantization));
  } else if (method == "compressed-tensors") {
    BT_RETURN_IF_ERROR(claim.ReadPacked(*quantization));
  } else {
    return InvalidArgument(fmt::format(
        "quantization_config: quant_method is \"{}\"; known are fp8 and compressed-tensors",
        method.substr(0, 64)));
  }
  return claim;
}

Status QuantizationClaim::ReadFp8(const Json& config) {
  claimed_ = WeightForm::kFp8Block;
  BT_RETURN_IF_ERROR(Expect(config, "weight_block_size", "[128,128]"));
  BT_RETURN_IF_ERROR(Expect(config, "fmt", "e4m3"));
  return AddIgnored(config.value("modules_to_not_convert", Json()));
}

Status QuantizationClaim::ReadPacked(const Json& config) {
  claimed_ = WeightForm::kInt4Group;
  BT_RETURN_IF_ERROR(Expect(config, "format", "pack-quantized"));
  const Json groups = config.value("config_groups", Json::object());
  if (!groups.is_object()) return InvalidArgument("quantization_config: config_groups: no object");
  for (const auto& [name, group] : groups.items()) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) {
      return InvalidArgument(fmt::format("quantization_config: {}: no weights object", name));
    }
    const Json& weights = group["weights"];
    BT_RETURN_IF_ERROR(Expect(weights, "num_bits", "4"));
    BT_RETURN_IF_ERROR(Expect(weights, "group_size", "32"));
    BT_RETURN_IF_ERROR(Expect(weights, "symmetric", "true"));
    BT_RETURN_IF_ERROR(Expect(weights, "type", "int"));
  }
  return AddIgnored(config.value("ignore", Json()));
}

Status QuantizationClaim::AddIgnored(const Json& list) {
  if (list.is_null()) return {};
  if (!list.is_array()) return InvalidArgument("quantization_config: the ignored modules: no list");
  constexpr std::string_view kExpression = "re:";
  constexpr size_t kPatternBytes = 256;
  for (const Json& entry : list) {
    if (!entry.is_string()) {
      return InvalidArgument("quantization_config: an ignored module is no string");
    }
    const auto& text = entry.get_ref<const std::string&>();
    Pattern pattern;
    if (text.starts_with(kExpression)) {
      // Repetitions and long patterns can make the C library's expressions very large.
      if (text.size() > kPatternBytes || text.find('{') != std::string::npos) {
        return InvalidArgument("quantization_config: too complicated: " + text.substr(0, 128));
      }
      auto expression = std::make_unique<regex_t>();
      const std::string anchored = "^(" + text.substr(kExpression.size()) + ")";
      if (regcomp(expression.get(), anchored.c_str(), REG_EXTENDED | REG_NOSUB) != 0) {
        return InvalidArgument("quantization_config: not understood: " + text.substr(0, 128));
      }
      pattern.expression.reset(expression.release());
    } else {
      pattern.name = text;
    }
    ignored_.push_back(std::move(pattern));
  }
  return {};
}

std::optional<WeightForm> QuantizationClaim::FormOf(const std::string& stored_module,
                                                    std::string_view canonical_module) const {
  if (!description_->forms.empty()) {
    const WeightForm* form = description_->Find(canonical_module);
    return form == nullptr ? std::nullopt : std::optional<WeightForm>(*form);
  }
  for (const Pattern& pattern : ignored_) {
    if (pattern.Matches(stored_module)) return WeightForm::kBf16;
  }
  return claimed_;
}

std::string_view QuantizationClaim::method() const {
  if (!description_->forms.empty()) return "ascend";
  if (claimed_ == WeightForm::kFp8Block) return "fp8";
  return claimed_ == WeightForm::kInt4Group ? "compressed-tensors" : "";
}

const char* QuantizationClaim::source() const {
  return description_->forms.empty() ? "config.json" : kQuantDescriptionFile.data();
}

}  // namespace baltoro
