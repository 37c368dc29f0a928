#pragma once

// Reads checked values out of one JSON object of a configuration file. A missing or null key takes
// the default where there is one; everything else of a wrong type or range is refused with the key,
// what it says and what is expected.

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

class ConfigReader {
 public:
  // `prefix` names the object in messages ("text_config."); `object` must outlive the reader, or be
  // null for an object that is not there.
  ConfigReader(const Json& object, std::string prefix, std::string file = "config.json")
      : object_(&object), prefix_(std::move(prefix)), file_(std::move(file)) {}

  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  template <std::integral Integral>
  Status Integer(std::string_view key, int64_t low, int64_t high, Integral& out) const {
    if (!Has(key)) return Missing(key);
    return IntegerOr(key, low, high, 0, out);
  }
  template <std::integral Integral>
  Status IntegerOr(
      std::string_view key, int64_t low, int64_t high, int64_t missing, Integral& out) const {
    int64_t value = missing;
    BT_RETURN_IF_ERROR(CheckedInteger(key, low, high, value));
    out = static_cast<Integral>(value);
    return {};
  }
  Status Number(std::string_view key, double low, double high, double& out) const;
  Status NumberOr(std::string_view key, double low, double high, double missing, double& out) const;
  // A list of out.size() numbers; a missing key leaves them as they are.
  Status NumbersOr(std::string_view key, double low, double high, std::span<double> out) const;
  Status BoolOr(std::string_view key, bool missing, bool& out) const;
  Status String(std::string_view key, std::string& out) const;
  Status StringOr(std::string_view key, std::string_view missing, std::string& out) const;
  // One integer or a list of them; each is appended to `out` unless it is there already.
  Status AddIntegers(std::string_view key,
                     int64_t low,
                     int64_t high,
                     std::vector<int32_t>& out) const;
  // The object under `key`; an empty one when the key is missing or null.
  Result<ConfigReader> ObjectOr(std::string_view key) const;

 private:
  const Json* Find(std::string_view key) const;
  Status CheckedInteger(std::string_view key, int64_t low, int64_t high, int64_t& value) const;
  Status Missing(std::string_view key) const;
  Status Refuse(std::string_view key, const Json& said, std::string_view expected) const;

  const Json* object_;
  std::string prefix_;
  std::string file_;
};

}  // namespace baltoro
