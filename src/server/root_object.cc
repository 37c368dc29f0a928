#include "server/root_object.h"

#include <algorithm>
#include <string_view>

namespace baltoro {
namespace {

constexpr std::string_view kOtherTypes[] = {"array", "boolean", "integer",
                                            "null",  "number",  "string"};

// An unknown name says nothing: what it is worth is told where the grammar is made.
bool IsOtherType(const Json& name) {
  return name.is_string() && std::find(std::begin(kOtherTypes), std::end(kOtherTypes),
                                       name.get_ref<const std::string&>()) != std::end(kOtherTypes);
}

bool All(const Json& list, bool (*holds)(const Json&)) {
  return list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), holds);
}

bool NoObject(const Json& value) {
  return !value.is_object();
}

}  // namespace

bool NeverAnObject(const Json& schema) {
  if (schema.is_boolean()) return !schema.get<bool>();
  if (!schema.is_object()) return false;
  for (const auto& [key, value] : schema.items()) {
    if (key == "type" && (IsOtherType(value) || All(value, IsOtherType))) return true;
    if (key == "const" && NoObject(value)) return true;
    if (key == "enum" && All(value, NoObject)) return true;
    if ((key == "anyOf" || key == "oneOf") && All(value, NeverAnObject)) return true;
    if (key == "allOf" && value.is_array() &&
        std::any_of(value.begin(), value.end(), NeverAnObject)) {
      return true;
    }
  }
  return false;
}

}  // namespace baltoro
