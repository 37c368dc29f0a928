#include "grammar/json_schema_validate.h"

#include <algorithm>
#include <array>
#include <set>

#include "grammar/json_number.h"
#include "grammar/json_schema_format.h"

namespace baltoro {
namespace {

constexpr int kMaxDepth = 64;

Verdict Sure(bool valid) {
  return valid ? Verdict::kYes : Verdict::kNo;
}

Verdict Opposite(Verdict verdict) {
  if (verdict == Verdict::kUnknown) return verdict;
  return Sure(verdict == Verdict::kNo);
}

bool IsMultiple(const Decimal& value, const Decimal& factor, bool& known) {
  // As whole numbers, both scaled by the same power of ten.
  constexpr size_t kMaxDigits = 17;
  const size_t places = std::max(value.fraction.size(), factor.fraction.size());
  const auto scaled = [&](const Decimal& number) {
    std::string digits = number.whole + number.fraction;
    digits.append(places - number.fraction.size(), '0');
    return digits;
  };
  const std::string divisor_digits = scaled(factor);
  int64_t divisor = 0, remainder = 0;
  known = divisor_digits.size() <= kMaxDigits;
  if (!known) return false;
  for (const char digit : divisor_digits) divisor = divisor * 10 + (digit - '0');
  known = divisor != 0;
  if (!known) return false;
  for (const char digit : scaled(value)) remainder = (remainder * 10 + (digit - '0')) % divisor;
  return remainder == 0;
}

}  // namespace

bool TypesOf(const Json& demand, uint8_t& types) {
  if (demand.is_array()) {
    types = 0;
    for (const Json& one : demand) {
      uint8_t more = 0;
      if (!one.is_string() || !TypesOf(one, more)) return false;
      types |= more;
    }
    return true;
  }
  if (!demand.is_string()) return false;
  const auto& name = demand.get_ref<const std::string&>();
  constexpr std::pair<std::string_view, uint8_t> kNames[] = {
      {"null", kJsonNull},
      {"boolean", kJsonBoolean},
      {"string", kJsonString},
      {"array", kJsonArray},
      {"object", kJsonObject},
      {"integer", kJsonInteger},
      {"number", kJsonInteger | kJsonFraction}};
  for (const auto& [known, bits] : kNames) {
    if (name != known) continue;
    types = bits;
    return true;
  }
  return false;
}

bool IsAnnotation(std::string_view keyword) {
  constexpr std::array<std::string_view, 34> kKnown = {"$schema",
                                                       "$id",
                                                       "id",
                                                       "$anchor",
                                                       "$dynamicAnchor",
                                                       "$recursiveAnchor",
                                                       "$comment",
                                                       "$defs",
                                                       "definitions",
                                                       "$vocabulary",
                                                       "title",
                                                       "description",
                                                       "default",
                                                       "examples",
                                                       "example",
                                                       "deprecated",
                                                       "readOnly",
                                                       "writeOnly",
                                                       "contentEncoding",
                                                       "contentMediaType",
                                                       "contentSchema",
                                                       "then",
                                                       "else",
                                                       "minContains",
                                                       "maxContains",
                                                       "nullable",
                                                       "discriminator",
                                                       "externalDocs",
                                                       "xml",
                                                       "enumNames",
                                                       "enumDescriptions",
                                                       "markdownDescription",
                                                       "propertyOrdering",
                                                       "strict"};
  return keyword.starts_with("x-") ||
         std::find(kKnown.begin(), kKnown.end(), keyword) != kKnown.end();
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

Verdict SchemaValidator::CheckAll(const std::vector<const Json*>& schemas, const Json& value) {
  Verdict out = Verdict::kYes;
  for (const Json* schema : schemas) out = std::min(out, Check(*schema, value));
  return out;
}

Verdict SchemaValidator::Search(const std::string& pattern, const std::string& text) {
  const Regex* regex = context_.FindRegex(pattern);
  if (regex == nullptr) return Verdict::kUnknown;
  const Result<bool> sure = regex->Matches(text, {}, context_.budget());
  const Result<bool> maybe = regex->Matches(text, {.widest = true}, context_.budget());
  if (!sure.ok() || !maybe.ok()) return Verdict::kUnknown;
  if (sure.value() != maybe.value()) return Verdict::kUnknown;
  return Sure(sure.value());
}

// NOLINTNEXTLINE(misc-no-recursion): the depth is bounded.
Verdict SchemaValidator::Check(const Json& schema, const Json& value, int depth) {
  if (schema.is_boolean()) return Sure(schema.get<bool>());
  if (!schema.is_object() || depth > kMaxDepth || !context_.Spend(&schema).ok()) {
    return Verdict::kUnknown;
  }
  Verdict out = Verdict::kYes;
  for (const auto& [key, demand] : schema.items()) {
    out = std::min(out, Keyword(schema, key, demand, value, depth + 1));
    if (out == Verdict::kNo) break;
  }
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion)
Verdict SchemaValidator::Keyword(
    const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth) {
  if (key == "type") {
    uint8_t types = 0;
    if (!TypesOf(demand, types)) return Verdict::kUnknown;
    const auto nullable = schema.find("nullable");
    if (nullable != schema.end() && *nullable == Json(true)) types |= kJsonNull;
    return Sure((types & JsonTypeOf(value)) != 0);
  }
  if (key == kTypeBits) {
    if (!demand.is_number_integer()) return Verdict::kUnknown;
    return Sure((demand.get<int>() & JsonTypeOf(value)) != 0);
  }
  if (key == "const") return Sure(JsonEqual(demand, value));
  if (key == "enum" || key == kNotValues) {
    const auto [listed, is_new] = listed_.try_emplace(&demand);
    const int64_t steps = is_new ? static_cast<int64_t>(demand.size()) : 1;
    if (!context_.Charge(&schema, 8 * steps).ok()) return Verdict::kUnknown;
    if (is_new) {
      for (const Json& one : demand) listed->second.Add(one);
    }
    return Sure(listed->second.Contains(value) == (key == "enum"));
  }
  constexpr std::array<std::string_view, 11> kCombined = {
      "$ref", "$dynamicRef",      "$recursiveRef",     "allOf",       "anyOf", "oneOf", "not",
      "if",   "dependentSchemas", "dependentRequired", "dependencies"};
  if (std::find(kCombined.begin(), kCombined.end(), key) != kCombined.end()) {
    return Combined(schema, key, demand, value, depth);
  }
  constexpr std::array<std::string_view, 5> kNumber = {"minimum", "maximum", "exclusiveMinimum",
                                                       "exclusiveMaximum", "multipleOf"};
  if (std::find(kNumber.begin(), kNumber.end(), key) != kNumber.end()) {
    return value.is_number() ? Number(schema, key, demand, value) : Verdict::kYes;
  }
  constexpr std::array<std::string_view, 5> kString = {"minLength", "maxLength", "pattern",
                                                       kNotPattern, "format"};
  if (std::find(kString.begin(), kString.end(), key) != kString.end()) {
    return value.is_string() ? String(key, demand, value) : Verdict::kYes;
  }
  constexpr std::array<std::string_view, 8> kArray = {
      "items",    "prefixItems", "additionalItems", "minItems",
      "maxItems", "uniqueItems", "contains",        "unevaluatedItems"};
  if (std::find(kArray.begin(), kArray.end(), key) != kArray.end()) {
    return value.is_array() ? Array(schema, key, demand, value, depth) : Verdict::kYes;
  }
  constexpr std::array<std::string_view, 8> kObject = {
      "properties", "patternProperties", "additionalProperties", "propertyNames",
      "required",   "minProperties",     "maxProperties",        "unevaluatedProperties"};
  if (std::find(kObject.begin(), kObject.end(), key) != kObject.end()) {
    return value.is_object() ? Object(schema, key, demand, value, depth) : Verdict::kYes;
  }
  return IsAnnotation(key) ? Verdict::kYes : Verdict::kUnknown;
}

// NOLINTNEXTLINE(misc-no-recursion)
Verdict SchemaValidator::Combined(
    const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth) {
  if (key[0] == '$') {
    if (!demand.is_string()) return Verdict::kUnknown;
    const Result<const Json*> target = key == "$ref"
                                           ? context_.index.Resolve(&schema, demand)
                                           : context_.index.ResolveDynamic(&schema, demand);
    return target.ok() ? Check(*target.value(), value, depth) : Verdict::kUnknown;
  }
  if (key == "not") return Opposite(Check(demand, value, depth));
  if (key == "if") {
    const Verdict holds = Check(demand, value, depth);
    const auto branch = [&](const char* name) {
      const auto found = schema.find(name);
      return found == schema.end() ? Verdict::kYes : Check(*found, value, depth);
    };
    if (holds == Verdict::kYes) return branch("then");
    if (holds == Verdict::kNo) return branch("else");
    const Verdict yes = branch("then"), no = branch("else");
    return yes == no ? yes : Verdict::kUnknown;
  }
  if (key.starts_with("depend")) {
    Verdict out = Verdict::kYes;
    if (!value.is_object() || !demand.is_object()) return out;
    for (const auto& [name, needs] : demand.items()) {
      if (!value.contains(name)) continue;
      if (!needs.is_array()) {
        out = std::min(out, Check(needs, value, depth));
        continue;
      }
      for (const Json& other : needs) {
        out = std::min(out, Sure(other.is_string() && value.contains(other.get<std::string>())));
      }
    }
    return out;
  }
  int valid = 0, unknown = 0;
  for (const Json& branch : demand) {
    const Verdict verdict = Check(branch, value, depth);
    valid += verdict == Verdict::kYes;
    unknown += verdict == Verdict::kUnknown;
  }
  const int all = static_cast<int>(demand.size());
  if (key == "allOf") {
    if (valid + unknown < all) return Verdict::kNo;
    return unknown > 0 ? Verdict::kUnknown : Verdict::kYes;
  }
  if (key == "anyOf") {
    if (valid > 0) return Verdict::kYes;
    return unknown > 0 ? Verdict::kUnknown : Verdict::kNo;
  }
  if (valid > 1) return Verdict::kNo;
  return unknown > 0 ? Verdict::kUnknown : Sure(valid == 1);
}

Verdict SchemaValidator::Number(const Json& schema,
                                const std::string& key,
                                const Json& demand,
                                const Json& value) {
  if (demand.is_boolean()) return Verdict::kYes;  // draft 4: looked at beside its bound
  if (!demand.is_number()) return Verdict::kUnknown;
  const Decimal number = Decimal::Of(value), bound = Decimal::Of(demand);
  if (key == "multipleOf") {
    bool known = false;
    const bool multiple = IsMultiple(number, bound, known);
    return known ? Sure(multiple) : Verdict::kUnknown;
  }
  const int order = number.Compare(bound);
  const bool lower = key == "minimum" || key == "exclusiveMinimum";
  const auto flag = schema.find(lower ? "exclusiveMinimum" : "exclusiveMaximum");
  const bool exclusive = key.starts_with("exclusive") ||
                         (flag != schema.end() && flag->is_boolean() && flag->get<bool>());
  if (order == 0) return Sure(!exclusive);
  return Sure(lower ? order > 0 : order < 0);
}

Verdict SchemaValidator::String(const std::string& key, const Json& demand, const Json& value) {
  const auto& text = value.get_ref<const std::string&>();
  if (key == "minLength" || key == "maxLength") {
    if (!demand.is_number()) return Verdict::kUnknown;
    const auto length = static_cast<double>(CountCharacters(text));
    return Sure(key == "minLength" ? length >= demand.get<double>()
                                   : length <= demand.get<double>());
  }
  if (!demand.is_string()) return Verdict::kUnknown;
  if (key == "pattern") return Search(demand, text);
  if (key == kNotPattern) return Opposite(Search(demand, text));
  const auto pattern = FormatPattern(demand.get_ref<const std::string&>());
  if (!pattern) return Verdict::kUnknown;
  // A format's pattern is narrower than the format: what it does not match may still be right.
  const Verdict inside = Search("^(" + *pattern + ")$", text);
  return inside == Verdict::kYes ? inside : Verdict::kUnknown;
}

// NOLINTNEXTLINE(misc-no-recursion)
Verdict SchemaValidator::Array(
    const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth) {
  if (key == "minItems" || key == "maxItems") {
    if (!demand.is_number()) return Verdict::kUnknown;
    const auto size = static_cast<double>(value.size());
    return Sure(key == "minItems" ? size >= demand.get<double>() : size <= demand.get<double>());
  }
  if (key == "uniqueItems") {
    if (demand != Json(true)) return Verdict::kYes;
    for (size_t i = 0; i < value.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (JsonEqual(value[i], value[j])) return Verdict::kNo;
      }
    }
    return Verdict::kYes;
  }
  Verdict out = Verdict::kYes;
  if (key == "contains") {
    int64_t sure = 0, unknown = 0;
    for (const Json& item : value) {
      const Verdict verdict = Check(demand, item, depth);
      sure += verdict == Verdict::kYes;
      unknown += verdict == Verdict::kUnknown;
    }
    const auto minimum = schema.find("minContains");
    const bool counted = minimum != schema.end();
    if (schema.contains("maxContains") || (counted && !minimum->is_number())) {
      return Verdict::kUnknown;
    }
    const int64_t least = counted ? minimum->get<int64_t>() : 1;
    if (sure >= least) return Verdict::kYes;
    return sure + unknown < least ? Verdict::kNo : Verdict::kUnknown;
  }
  if (key == "unevaluatedItems") return demand == Json(true) ? out : Verdict::kUnknown;
  if (key == "prefixItems" || (key == "items" && demand.is_array())) {
    for (size_t i = 0; i < std::min(value.size(), demand.size()); ++i) {
      out = std::min(out, Check(demand[i], value[i], depth));
    }
    return out;
  }
  // `items` after prefixItems, or additionalItems after an array of items.
  size_t first = 0;
  const auto before = schema.find(key == "items" ? "prefixItems" : "items");
  if (before != schema.end() && before->is_array()) first = before->size();
  if (key == "additionalItems" && first == 0) return out;
  for (size_t i = first; i < value.size(); ++i) out = std::min(out, Check(demand, value[i], depth));
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion)
Verdict SchemaValidator::Object(
    const Json& schema, const std::string& key, const Json& demand, const Json& value, int depth) {
  Verdict out = Verdict::kYes;
  if (key == "minProperties" || key == "maxProperties") {
    if (!demand.is_number()) return Verdict::kUnknown;
    const auto size = static_cast<double>(value.size());
    return Sure(key == "minProperties" ? size >= demand.get<double>()
                                       : size <= demand.get<double>());
  }
  if (key == "required") {
    if (!demand.is_array()) return Verdict::kUnknown;
    for (const Json& name : demand) {
      out = std::min(out, Sure(name.is_string() && value.contains(name.get<std::string>())));
    }
    return out;
  }
  if (key == "properties") {
    for (const auto& [name, wanted] : demand.items()) {
      const auto found = value.find(name);
      if (found != value.end()) out = std::min(out, Check(wanted, *found, depth));
    }
    return out;
  }
  if (key == "patternProperties") {
    for (const auto& [pattern, wanted] : demand.items()) {
      for (const auto& [name, item] : value.items()) {
        const Verdict match = Search(pattern, name);
        if (match == Verdict::kNo) continue;
        const Verdict inside = Check(wanted, item, depth);
        out = std::min(out,
                       match == Verdict::kUnknown ? std::max(inside, Verdict::kUnknown) : inside);
      }
    }
    return out;
  }
  if (key == "propertyNames") {
    for (const auto& [name, item] : value.items()) {
      out = std::min(out, Check(demand, Json(name), depth));
    }
    return out;
  }
  if (key == "unevaluatedProperties") return demand == Json(true) ? out : Verdict::kUnknown;
  return Additional(schema, demand, value, depth);
}

// NOLINTNEXTLINE(misc-no-recursion)
Verdict SchemaValidator::Additional(const Json& schema,
                                    const Json& demand,
                                    const Json& value,
                                    int depth) {
  Verdict out = Verdict::kYes;
  const auto declared = schema.find("properties");
  const auto patterns = schema.find("patternProperties");
  for (const auto& [name, item] : value.items()) {
    if (declared != schema.end() && declared->contains(name)) continue;
    Verdict matched = Verdict::kNo;
    if (patterns != schema.end()) {
      for (const auto& [pattern, wanted] : patterns->items()) {
        matched = std::max(matched, Search(pattern, name));
      }
    }
    if (matched == Verdict::kYes) continue;
    const Verdict inside = Check(demand, item, depth);
    out =
        std::min(out, matched == Verdict::kUnknown ? std::max(inside, Verdict::kUnknown) : inside);
  }
  return out;
}

}  // namespace baltoro
