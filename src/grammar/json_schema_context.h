#pragma once

// What the steps of one schema's way to a grammar share.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/compile_budget.h"
#include "grammar/json_schema_index.h"
#include "grammar/regex.h"

namespace baltoro {

// Types as a set; JSON Schema's "number" is both of the last two.
enum JsonTypeBit : uint8_t {
  kJsonNull = 1,
  kJsonBoolean = 2,
  kJsonString = 4,
  kJsonArray = 8,
  kJsonObject = 16,
  kJsonInteger = 32,
  kJsonFraction = 64,  // a number that is not whole
};
inline constexpr uint8_t kJsonAllTypes = 127;

uint8_t JsonTypeOf(const Json& value);
// As JSON Schema compares: 1 is 1.0, and the order of members does not matter.
bool JsonEqual(const Json& left, const Json& right);
bool ContainsEqual(const std::vector<Json>& values, const Json& value);

// Keywords of our own, which only schemas that we made are asked for.
inline constexpr char kNotValues[] = "\x01not values";    // array
inline constexpr char kNotPattern[] = "\x01not pattern";  // string
inline constexpr char kTypeBits[] = "\x01types";          // set of JsonTypeBit

class SchemaContext {
 public:
  // `budget` may be null, else outlives it.
  SchemaContext(SchemaIndex schemas,
                bool refuses,
                std::vector<std::string>* unchecked,
                CompileBudget* budget)
      : index(std::move(schemas)), strict_(refuses), unchecked_(unchecked), budget_(budget) {}

  SchemaIndex index;

  bool strict() const { return strict_; }

  // The keyword cannot be enforced: an error if strict, else told to the caller.
  Status Unsupported(const Json* schema, std::string_view keyword, const std::string& why = "");
  // Lists how many more demands there were than are listed, if so, at the end of all.
  void CountUnlisted(const Json* schema);
  // The keyword's value is none that JSON Schema gives it.
  Status Malformed(const Json* schema, std::string_view keyword, const std::string& what) const;
  Status Failure(const Json* schema, const std::string& what) const;

  // Parsed once; null if it is not supported, and then `why` says so.
  const Regex* FindRegex(const std::string& pattern, std::string* why = nullptr);

  // Bounds the work that a small schema can ask for.
  Status Spend(const Json* schema, int64_t steps = 1);
  // For elementary steps (comparing two names), of which much more are allowed.
  Status Charge(const Json* schema, int64_t steps);
  bool spent() const { return steps_left_ < 0 || (budget_ != nullptr && budget_->spent()); }
  CompileBudget* budget() const { return budget_; }

 private:
  struct Parsed {
    std::optional<Regex> regex;
    std::string why;
  };
  bool strict_;
  std::vector<std::string>* unchecked_;
  int listed_ = 0;
  int64_t unlisted_ = 0;
  std::map<std::string, Parsed> regexes_;
  int64_t steps_left_ = 1'000'000;
  CompileBudget* budget_;
};

}  // namespace baltoro
