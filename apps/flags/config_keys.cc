#include "flags/config_keys.h"

#include <fmt/format.h>

#include "flags/near_word.h"

namespace baltoro {

Status ConfigKeys::Wrong(std::string_view key, std::string_view what) const {
  return InvalidArgument(fmt::format("{}: {}: {}", flag_, key, what));
}

Status ConfigKeys::Unknown(std::string_view key, const std::vector<std::string_view>& known) const {
  const std::string near = NearWord(key, known);
  return Wrong(key,
               near.empty() ? "no such key" : fmt::format("no such key; did you mean {}?", near));
}

const Json* ConfigKeys::Find(std::string_view key) const {
  const auto found = config_.find(key);
  return found == config_.end() || found->is_null() ? nullptr : &*found;
}

Result<std::string> ConfigKeys::Text(std::string_view key, std::string standard) const {
  const Json* value = Find(key);
  if (value == nullptr) return standard;
  if (!value->is_string()) return Wrong(key, "expected a string");
  return value->get<std::string>();
}

Result<bool> ConfigKeys::Switch(std::string_view key, bool standard) const {
  const Json* value = Find(key);
  if (value == nullptr) return standard;
  if (!value->is_boolean()) return Wrong(key, "expected true or false");
  return value->get<bool>();
}

Result<int64_t> ConfigKeys::Count(std::string_view key,
                                  int64_t least,
                                  int64_t most,
                                  int64_t standard) const {
  const Json* value = Find(key);
  if (value == nullptr) return standard;
  const int64_t number = value->is_number_integer() ? value->get<int64_t>() : least - 1;
  if (number < least || number > most) {
    return Wrong(key, fmt::format("it is {}, expected a whole number from {} to {}", value->dump(),
                                  least, most));
  }
  return number;
}

}  // namespace baltoro
