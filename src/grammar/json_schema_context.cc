#include "grammar/json_schema_context.h"

#include <algorithm>
#include <utility>

#include "grammar/json_number.h"

namespace baltoro {

namespace {
constexpr int64_t kElementarySteps = 64;  // that one of Spend may stand for
constexpr int kUncheckedMax = 64;
constexpr size_t kPathBytesMax = 200;

std::string Shortened(std::string path) {
  if (path.size() <= kPathBytesMax) return path;
  size_t end = kPathBytesMax;
  while (end > 0 && (path[end] & 0xC0) == 0x80) --end;  // whole characters
  return path.substr(0, end) + "...";
}

}  // namespace

uint8_t JsonTypeOf(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return kJsonNull;
    case Json::value_t::boolean:
      return kJsonBoolean;
    case Json::value_t::string:
      return kJsonString;
    case Json::value_t::array:
      return kJsonArray;
    case Json::value_t::object:
      return kJsonObject;
    case Json::value_t::number_float:
      return Decimal::Of(value).fraction.empty() ? kJsonInteger : kJsonFraction;
    default:
      return kJsonInteger;
  }
}

// NOLINTNEXTLINE(misc-no-recursion): as deep as the values.
bool JsonEqual(const Json& left, const Json& right) {
  if (!left.is_structured() || left.type() != right.type()) return left == right;
  if (left.size() != right.size()) return false;
  if (left.is_array()) {
    return std::equal(left.begin(), left.end(), right.begin(), JsonEqual);
  }
  for (const auto& [key, value] : left.items()) {
    const auto found = right.find(key);
    if (found == right.end() || !JsonEqual(value, *found)) return false;
  }
  return true;
}

bool ContainsEqual(const std::vector<Json>& values, const Json& value) {
  return std::any_of(values.begin(), values.end(),
                     [&](const Json& other) { return JsonEqual(other, value); });
}

Status SchemaContext::Failure(const Json* schema, const std::string& what) const {
  const std::string path = Shortened(index.Path(schema));
  return InvalidArgument(path.empty() ? what : path + ": " + what);
}

Status SchemaContext::Unsupported(const Json* schema,
                                  std::string_view keyword,
                                  const std::string& why) {
  if (strict_) {
    std::string what = "the keyword \"" + std::string(keyword) + "\" is not supported";
    if (!why.empty()) what += ": " + why;
    return Failure(schema, what);
  }
  if (unchecked_ == nullptr) return Status();
  if (listed_ >= kUncheckedMax) {
    ++unlisted_;
    return Status();
  }
  const std::string path = Shortened(index.Path(schema));
  std::string entry = Shortened(std::string(keyword));
  if (!path.empty()) entry = path + ": " + entry;
  if (std::find(unchecked_->begin(), unchecked_->end(), entry) == unchecked_->end()) {
    unchecked_->push_back(std::move(entry));
    ++listed_;
  }
  return Status();
}

void SchemaContext::CountUnlisted(const Json* schema) {
  if (unlisted_ == 0) return;
  const std::string path = Shortened(index.Path(schema));
  const std::string more = "and " + std::to_string(unlisted_) + " more";
  unchecked_->push_back(path.empty() ? more : path + ": " + more);
  unlisted_ = 0;
}

Status SchemaContext::Malformed(const Json* schema,
                                std::string_view keyword,
                                const std::string& what) const {
  return Failure(schema, "the keyword \"" + std::string(keyword) + "\" must be " + what);
}

const Regex* SchemaContext::FindRegex(const std::string& pattern, std::string* why) {
  const auto [found, is_new] = regexes_.try_emplace(pattern);
  Parsed& parsed = found->second;
  if (is_new) {
    Result<Regex> made = Regex::Parse(pattern);
    if (made.ok()) {
      parsed.regex = std::move(made).value();
    } else {
      parsed.why = made.status().message();
    }
  }
  if (why != nullptr) *why = parsed.why;
  return parsed.regex ? &*parsed.regex : nullptr;
}

Status SchemaContext::Spend(const Json* schema, int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ < 0) return Failure(schema, "the schema takes too long to work through");
  return Charge(schema, kElementarySteps * steps);
}

Status SchemaContext::Charge(const Json* schema, int64_t steps) {
  if (budget_ == nullptr || budget_->Charge(steps)) return Status();
  return Failure(schema, budget_->Failure().message());
}

}  // namespace baltoro
