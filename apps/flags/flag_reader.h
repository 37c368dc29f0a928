#pragma once

#include <cstdint>
#include <string_view>

#include "flags/parse.h"

namespace baltoro {

// Typed reading of what was parsed; each getter leaves `target` alone when the flag is absent.
class FlagReader {
 public:
  explicit FlagReader(const ParsedFlags& flags) : flags_(flags) {}

  const Json* Find(std::string_view name) const {
    const auto found = flags_.uses.find(name);
    return found == flags_.uses.end() ? nullptr : &found->second.value;
  }
  bool Has(std::string_view name) const { return Find(name) != nullptr; }
  bool Is(std::string_view name) const {
    const Json* value = Find(name);
    return value != nullptr && *value == Json(true);
  }
  int64_t Number(std::string_view name, int64_t otherwise) const {
    const Json* value = Find(name);
    return value == nullptr ? otherwise : value->get<int64_t>();
  }
  template <typename T>
  void Get(std::string_view name, T& target) const {
    if (const Json* value = Find(name)) target = value->get<T>();
  }

 private:
  const ParsedFlags& flags_;
};

}  // namespace baltoro
