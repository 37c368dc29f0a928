#include "base/config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace baltoro {
namespace {

// A value as it stands in the file, cut where it is long; never throws.
std::string Shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 60) + "...";
  return text;
}

}  // namespace

const Json* ConfigReader::Find(std::string_view key) const {
  const auto found = object_->find(key);
  if (found == object_->end() || found->is_null()) return nullptr;
  return &*found;
}

Status ConfigReader::Missing(std::string_view key) const {
  return InvalidArgument(fmt::format("{}: {}{} is missing", file_, prefix_, key));
}

Status ConfigReader::Refuse(std::string_view key,
                            const Json& said,
                            std::string_view expected) const {
  return InvalidArgument(
      fmt::format("{}: {}{} is {}; expected {}", file_, prefix_, key, Shown(said), expected));
}

Status ConfigReader::CheckedInteger(std::string_view key,
                                    int64_t low,
                                    int64_t high,
                                    int64_t& value) const {
  const Json* found = Find(key);
  if (found == nullptr) return {};
  const std::string expected = fmt::format("an integer from {} to {}", low, high);
  // nlohmann keeps numbers above the signed range apart; none of ours is that large.
  if (!found->is_number_integer()) return Refuse(key, *found, expected);
  if (found->is_number_unsigned() &&
      found->get<uint64_t>() > static_cast<uint64_t>(std::max<int64_t>(high, 0))) {
    return Refuse(key, *found, expected);
  }
  value = found->get<int64_t>();
  if (value < low || value > high) return Refuse(key, *found, expected);
  return {};
}

Status ConfigReader::Number(std::string_view key, double low, double high, double& out) const {
  if (!Has(key)) return Missing(key);
  return NumberOr(key, low, high, 0, out);
}

Status ConfigReader::NumberOr(
    std::string_view key, double low, double high, double missing, double& out) const {
  out = missing;
  const Json* found = Find(key);
  if (found == nullptr) return {};
  const std::string expected = fmt::format("a number from {} to {}", low, high);
  if (!found->is_number()) return Refuse(key, *found, expected);
  out = found->get<double>();
  if (!(out >= low && out <= high)) return Refuse(key, *found, expected);
  return {};
}

Status ConfigReader::NumbersOr(std::string_view key,
                               double low,
                               double high,
                               std::span<double> out) const {
  const Json* found = Find(key);
  if (found == nullptr) return {};
  const std::string expected =
      fmt::format("a list of {} numbers from {} to {}", out.size(), low, high);
  if (!found->is_array() || found->size() != out.size()) return Refuse(key, *found, expected);
  for (size_t i = 0; i < out.size(); ++i) {
    const Json& entry = (*found)[i];
    if (!entry.is_number()) return Refuse(key, *found, expected);
    out[i] = entry.get<double>();
    if (!(out[i] >= low && out[i] <= high)) return Refuse(key, *found, expected);
  }
  return {};
}

Status ConfigReader::BoolOr(std::string_view key, bool missing, bool& out) const {
  out = missing;
  const Json* found = Find(key);
  if (found == nullptr) return {};
  if (!found->is_boolean()) return Refuse(key, *found, "true or false");
  out = found->get<bool>();
  return {};
}

Status ConfigReader::String(std::string_view key, std::string& out) const {
  if (!Has(key)) return Missing(key);
  return StringOr(key, "", out);
}

Status ConfigReader::StringOr(std::string_view key,
                              std::string_view missing,
                              std::string& out) const {
  out = missing;
  const Json* found = Find(key);
  if (found == nullptr) return {};
  if (!found->is_string()) return Refuse(key, *found, "a string");
  out = found->get<std::string>();
  return {};
}

Status ConfigReader::AddIntegers(std::string_view key,
                                 int64_t low,
                                 int64_t high,
                                 std::vector<int32_t>& out) const {
  const Json* found = Find(key);
  if (found == nullptr) return {};
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::unordered_set<int32_t> known(out.begin(), out.end());
  for (const Json& entry : list) {
    const Json wrapped = Json::object({{std::string(key), entry}});
    int64_t value = 0;
    BT_RETURN_IF_ERROR(ConfigReader(wrapped, prefix_, file_).CheckedInteger(key, low, high, value));
    const auto id = static_cast<int32_t>(value);
    if (known.insert(id).second) out.push_back(id);
  }
  return {};
}

Result<ConfigReader> ConfigReader::ObjectOr(std::string_view key) const {
  static const Json empty = Json::object();
  const Json* found = Find(key);
  if (found == nullptr) return ConfigReader(empty, prefix_, file_);
  if (!found->is_object()) return Refuse(key, *found, "an object");
  return ConfigReader(*found, prefix_ + std::string(key) + ".", file_);
}

}  // namespace baltoro
