#include "server/field_reader.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

namespace baltoro {
namespace {

// 5 and 5.0 alike: some clients know only one kind of number.
std::optional<int64_t> WholeNumber(const Json& field) {
  if (field.is_number_unsigned()) {
    const auto value = field.get<uint64_t>();
    if (value > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(value);
  }
  if (field.is_number_integer()) return field.get<int64_t>();
  if (!field.is_number_float()) return std::nullopt;
  const auto value = field.get<double>();
  constexpr double kExactMax = 9007199254740992.0;  // 2^53
  if (!(std::abs(value) <= kExactMax) || value != std::floor(value)) return std::nullopt;
  return static_cast<int64_t>(value);
}

}  // namespace

const Json* FieldReader::Find(std::string_view name) const {
  if (error_) return nullptr;
  const auto found = object_.find(name);
  if (found == object_.end() || found->is_null()) return nullptr;
  return &*found;
}

void FieldReader::Fail(std::string_view name, std::string message) {
  FailAt(name, name, message);
}

void FieldReader::FailAt(std::string_view name, std::string_view path, std::string_view message) {
  if (!error_) error_ = BadRequest(name, fmt::format("{}: {}", path, message));
}

void FieldReader::Fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

void FieldReader::Bool(std::string_view name, bool& out) {
  const Json* field = Find(name);
  if (field == nullptr) return;
  if (!field->is_boolean()) return Fail(name, "must be true or false");
  out = field->get<bool>();
}

void FieldReader::Integer(std::string_view name, int64_t& out, int64_t min, int64_t max) {
  const Json* field = Find(name);
  if (field == nullptr) return;
  const std::optional<int64_t> value = WholeNumber(*field);
  if (!value) return Fail(name, fmt::format("must be a whole number from {} to {}", min, max));
  if (*value < min || *value > max) {
    return Fail(name, fmt::format("must be from {} to {}, got {}", min, max, *value));
  }
  out = *value;
}

void FieldReader::Integer(std::string_view name, int32_t& out, int64_t min, int64_t max) {
  int64_t wide = out;
  Integer(name, wide, std::max<int64_t>(min, INT32_MIN), std::min<int64_t>(max, INT32_MAX));
  out = static_cast<int32_t>(wide);
}

void FieldReader::Number(std::string_view name, float& out, double min, double max, bool open_min) {
  const Json* field = Find(name);
  if (field == nullptr) return;
  const auto range = [&] {
    return fmt::format("must be a number {} {} and at most {}", open_min ? "above" : "of at least",
                       min, max);
  };
  if (!field->is_number()) return Fail(name, range());
  const auto value = field->get<double>();
  if (!std::isfinite(value) || value < min || value > max || (open_min && value <= min)) {
    return Fail(name, fmt::format("{}, got {}", range(), value));
  }
  out = static_cast<float>(value);
}

void FieldReader::String(std::string_view name, std::string& out, size_t bytes_max) {
  const Json* field = Find(name);
  if (field == nullptr) return;
  if (!field->is_string()) return Fail(name, "must be a string");
  const auto& value = field->get_ref<const std::string&>();
  if (value.size() > bytes_max) return Fail(name, fmt::format("longer than {} bytes", bytes_max));
  out = value;
}

void FieldReader::Strings(std::string_view name,
                          std::vector<std::string>& out,
                          size_t count_max,
                          size_t bytes_max) {
  const Json* field = Find(name);
  if (field == nullptr) return;
  const auto add = [&](const Json& item) {
    if (!item.is_string()) return Fail(name, "must be a string or a list of strings");
    const auto& value = item.get_ref<const std::string&>();
    if (value.empty()) return Fail(name, "strings must not be empty");
    if (value.size() > bytes_max)
      return Fail(name, fmt::format("a string is longer than {} bytes", bytes_max));
    out.push_back(value);
  };
  out.clear();
  if (!field->is_array()) return add(*field);
  if (field->size() > count_max) return Fail(name, fmt::format("more than {} strings", count_max));
  for (const Json& item : *field) add(item);
}

void FieldReader::TokenIds(std::string_view name,
                           std::vector<int32_t>& out,
                           size_t count_max,
                           int64_t below) {
  const Json* field = Find(name);
  if (field == nullptr) return;
  if (!field->is_array()) return Fail(name, "must be a list of token ids");
  if (field->size() > count_max)
    return Fail(name, fmt::format("more than {} token ids", count_max));
  out.clear();
  for (const Json& item : *field) {
    const bool in_range = item.is_number_integer() &&
                          !(item.is_number_unsigned() && item.get<uint64_t>() > INT32_MAX) &&
                          item.get<int64_t>() >= 0 && item.get<int64_t>() < below;
    if (!in_range)
      return Fail(name, fmt::format("token ids must be whole numbers from 0 to {}", below - 1));
    out.push_back(item.get<int32_t>());
  }
}

}  // namespace baltoro
