#pragma once

// Reads the fields of one JSON object with their limits. The first wrong field wins; the rest is
// then not looked at. Absent and null are the same: the caller's default stays. Unknown fields are
// ignored, as upstream does.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "server/api_error.h"

namespace baltoro {

class FieldReader {
 public:
  explicit FieldReader(const Json& object) : object_(object) {}

  // The field, or null when absent, null, or an earlier field was wrong.
  const Json* Find(std::string_view name) const;
  void Fail(std::string_view name, std::string message);
  // About a place inside the field, whose path the message begins with.
  void FailAt(std::string_view name, std::string_view path, std::string_view message);
  void Fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }
  bool ok() const { return !error_.has_value(); }

  void Bool(std::string_view name, bool& out);
  void Integer(std::string_view name, int64_t& out, int64_t min, int64_t max);
  void Integer(std::string_view name, int32_t& out, int64_t min, int64_t max);
  // Finite numbers in [min, max]; with `open_min` min itself is refused.
  void Number(std::string_view name, float& out, double min, double max, bool open_min = false);
  void String(std::string_view name, std::string& out, size_t bytes_max);
  // A string or a list of strings, none empty.
  void Strings(std::string_view name,
               std::vector<std::string>& out,
               size_t count_max,
               size_t bytes_max);
  // A list of integers in [0, below).
  void TokenIds(std::string_view name, std::vector<int32_t>& out, size_t count_max, int64_t below);

 private:
  const Json& object_;
  std::optional<ApiError> error_;
};

}  // namespace baltoro
