#include "flags/value.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/trim.h"
#include "flags/flag_table.h"
#include "flags/near_word.h"

namespace baltoro {
namespace {

constexpr std::string_view kDecimalSuffixes = "kmgt";
constexpr std::string_view kBinarySuffixes = "KMGT";

Status Invalid(std::string_view what, std::string_view text) {
  return InvalidArgument(fmt::format("invalid {} value: '{}'", what, text));
}

Result<int64_t> ParseInteger(std::string_view text) {
  std::string_view digits = Trim(text);
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size()) return Invalid("int", text);
  return value;
}

Result<double> ParseFloat(std::string_view text) {
  std::string_view digits = Trim(text);
  if (digits.starts_with('+') && !digits.starts_with("+-")) digits.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || !std::isfinite(value)) {
    return Invalid("float", text);
  }
  return value;
}

// 10^(3n) or 2^(10n) by the suffix's place; upper case is binary.
int64_t Multiplier(char suffix) {
  int64_t value = 1;
  if (const size_t place = kDecimalSuffixes.find(suffix); place != std::string_view::npos) {
    for (size_t i = 0; i <= place; ++i) value *= 1000;
  } else if (const size_t binary = kBinarySuffixes.find(suffix); binary != std::string_view::npos) {
    for (size_t i = 0; i <= binary; ++i) value *= 1024;
  } else {
    value = 0;
  }
  return value;
}

Status CheckBounds(const FlagSpec& spec, double value) {
  if (value >= spec.min && value <= spec.max) return Status();
  if (std::isinf(spec.max)) {
    return InvalidArgument(fmt::format("{} is below the least value, {}", value, spec.min));
  }
  return InvalidArgument(fmt::format("{} is not within {} and {}", value, spec.min, spec.max));
}

Result<Json> CheckedNumber(const FlagSpec& spec, const Result<int64_t>& number) {
  if (!number.ok()) return number.status();
  BT_RETURN_IF_ERROR(CheckBounds(spec, static_cast<double>(number.value())));
  return Json(number.value());
}

// Integers without a bound of their own are held in 32 bits: a longer one is refused, not cut.
Result<Json> CheckedInteger(const FlagSpec& spec, std::string_view word) {
  const Result<int64_t> number = ParseInteger(word);
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (number.ok() && std::isinf(spec.max) && number.value() > kMost) {
    return InvalidArgument(fmt::format("{} is more than {}", number.value(), kMost));
  }
  return CheckedNumber(spec, number);
}

Result<Json> CheckedChoice(const FlagSpec& spec, std::string text) {
  if (spec.fold_case) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  if (spec.choices.empty() || IsOneOf(spec.choices, text)) return Json(std::move(text));
  const std::string list = fmt::format("{}", fmt::join(SplitText(spec.choices, '|'), ", "));
  const std::string guess = NearWord(text, SplitText(spec.choices, '|'));
  return InvalidArgument(fmt::format("invalid choice: '{}' ({}choose from {})", text,
                                     guess.empty() ? "" : "did you mean " + guess + "? ", list));
}

Result<Json> ParseJsonValue(const FlagSpec& spec, const std::string& text) {
  Result<Json> json = ParseJson(text);
  const bool object = spec.kind == ValueKind::kJsonObject;
  const std::string_view wanted = object ? "a JSON object" : "a JSON list of strings";
  if (!json.ok()) {
    return InvalidArgument(
        fmt::format("value {} is not {}: {}", text, wanted, json.status().message()));
  }
  const Json& value = json.value();
  const bool right =
      object ? value.is_object()
             : value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& element) {
                 return element.is_string();
               });
  if (!right) return InvalidArgument(fmt::format("value {} is not {}", text, wanted));
  return json;
}

}  // namespace

Result<int64_t> ParseCount(std::string_view text) {
  const std::string_view trimmed = Trim(text);
  const int64_t multiplier = trimmed.empty() ? 0 : Multiplier(trimmed.back());
  if (multiplier == 0) return ParseInteger(text);
  const char suffix = trimmed.back();
  const std::string_view number = trimmed.substr(0, trimmed.size() - 1);
  const size_t dot = number.find('.');
  const std::string_view whole = number.substr(0, dot);
  const std::string_view fraction =
      dot == std::string_view::npos ? std::string_view() : number.substr(dot + 1);
  auto all_digits = [](std::string_view part) {
    return !part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos;
  };
  if (!all_digits(whole) || (dot != std::string_view::npos && !all_digits(fraction))) {
    return Invalid("int", text);
  }
  if (dot != std::string_view::npos && suffix >= 'A' && suffix <= 'Z') {
    return InvalidArgument(fmt::format(
        "Decimals are not allowed with binary suffixes like {}. Did you mean to use {}{} instead?",
        suffix, number, static_cast<char>(suffix - 'A' + 'a')));
  }
  BT_ASSIGN_OR_RETURN(const int64_t count, ParseInteger(whole));
  int64_t value = 0;
  if (__builtin_mul_overflow(count, multiplier, &value)) return Invalid("int", text);
  int64_t place = multiplier;  // exact decimals: what is below one unit is cut off
  for (size_t i = 0; i < fraction.size() && place > 1; ++i) {
    place /= 10;
    if (__builtin_add_overflow(value, place * (fraction[i] - '0'), &value)) {
      return Invalid("int", text);
    }
  }
  return value;
}

Result<Json> ParseValue(const FlagSpec& spec, std::span<const std::string> words) {
  BT_CHECK(!words.empty());
  const std::string& word = words.front();
  switch (spec.kind) {
    case ValueKind::kBool:
    case ValueKind::kSwitch:
      break;
    case ValueKind::kInt:
      return CheckedInteger(spec, word);
    case ValueKind::kCount:
      return CheckedNumber(spec, ParseCount(word));
    case ValueKind::kCountOrAuto:
      if (Trim(word) == "auto" || Trim(word) == "-1") return Json(int64_t{-1});
      return CheckedNumber(spec, ParseCount(word));
    case ValueKind::kFloat: {
      BT_ASSIGN_OR_RETURN(const double value, ParseFloat(word));
      BT_RETURN_IF_ERROR(CheckBounds(spec, value));
      return Json(value);
    }
    case ValueKind::kString:
      return CheckedChoice(spec, word);
    case ValueKind::kStrings:
    case ValueKind::kEach:
      return Json(std::vector<std::string>(words.begin(), words.end()));
    case ValueKind::kInts: {
      Json list = Json::array();
      for (const std::string& each : words) {
        BT_ASSIGN_OR_RETURN(Json number, CheckedInteger(spec, each));
        list.push_back(std::move(number));
      }
      return list;
    }
    case ValueKind::kJsonObject:
    case ValueKind::kJsonStrings:
      return ParseJsonValue(spec, word);
  }
  BT_CHECK(false);
}

std::string ValueText(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_float()) return fmt::format("{}", value.get<double>());
  if (value.is_array()) {
    std::string text;
    for (const Json& element : value) {
      if (!text.empty()) text += ' ';
      text += ValueText(element);
    }
    return text;
  }
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool IsOneOf(std::string_view list, std::string_view text) {
  const std::vector<std::string_view> values = SplitText(list, '|');
  return std::find(values.begin(), values.end(), text) != values.end();
}

std::string ValueShape(const FlagSpec& spec) {
  switch (spec.kind) {
    case ValueKind::kBool:
    case ValueKind::kSwitch:
      return "";
    case ValueKind::kInt:
      return "N";
    case ValueKind::kCount:
      return "N[k|K|m|M|g|G]";
    case ValueKind::kCountOrAuto:
      return "N[k|K|m|M]|auto";
    case ValueKind::kFloat:
      return "X";
    case ValueKind::kEach:
    case ValueKind::kString:
      return spec.choices.empty() ? "TEXT" : fmt::format("{{{}}}", spec.choices);
    case ValueKind::kStrings:
      return "TEXT [TEXT ...]";
    case ValueKind::kInts:
      return "N [N ...]";
    case ValueKind::kJsonObject:
    case ValueKind::kJsonStrings:
      return "JSON";
  }
  BT_CHECK(false);
}

}  // namespace baltoro
