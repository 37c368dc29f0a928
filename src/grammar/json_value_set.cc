#include "grammar/json_value_set.h"

#include <functional>
#include <string>

#include "base/keyed_hash.h"

namespace baltoro {

// NOLINTNEXTLINE(misc-no-recursion): the depth of a text is bounded.
size_t JsonValueSet::Hash::Of(const Json& value) {
  if (value.is_string()) return KeyedHash(value.get_ref<const std::string&>());
  // Whole numbers equal the same ones with a fraction of zero.
  if (value.is_number()) return std::hash<double>()(value.get<double>());
  auto out = static_cast<size_t>(JsonTypeOf(value));
  if (value.is_boolean()) out += value.get<bool>() ? 1000 : 0;
  if (value.is_array()) {
    for (const Json& item : value) out = out * 31 + Of(item);
  }
  if (value.is_object()) {  // in whatever order its members come
    for (const auto& [key, item] : value.items()) out += KeyedHash(key) * (2 * Of(item) + 1);
  }
  return out;
}

}  // namespace baltoro
