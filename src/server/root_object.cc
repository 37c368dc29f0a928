#include "server/root_object.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace baltoro {
namespace {

constexpr std::string_view kOtherTypes[] = {"array", "boolean", "integer",
                                            "null",  "number",  "string"};
// Alternatives that all lead to one large part would be read again and again.
constexpr int kReferencesMax = 64;

// An unknown name says nothing: what it is worth is told where the grammar is made.
bool IsOtherType(const Json& name) {
  return name.is_string() && std::find(std::begin(kOtherTypes), std::end(kOtherTypes),
                                       name.get_ref<const std::string&>()) != std::end(kOtherTypes);
}

template <typename Holds>
bool All(const Json& list, Holds holds) {
  return list.is_array() && !list.empty() && std::all_of(list.begin(), list.end(), holds);
}

bool NoObject(const Json& value) {
  return !value.is_object();
}

// What "#/$defs/a" means in `root`; null where it leads to nothing, or is written in another way.
const Json* Target(const Json& root, const Json& reference) {
  if (!reference.is_string()) return nullptr;
  const std::string& text = reference.get_ref<const std::string&>();
  if (!text.starts_with("#/") || text.find('%') != std::string::npos) return nullptr;
  const Json* at = &root;
  for (size_t begin = 2; begin <= text.size();) {
    const size_t end = std::min(text.find('/', begin), text.size());
    std::string key;
    for (size_t i = begin; i < end; ++i) {
      const bool escape = text[i] == '~' && i + 1 < end;
      key += escape ? (text[++i] == '0' ? '~' : '/') : text[i];
    }
    // A part with a name of its own, on the way: references inside of it mean other places.
    if (!at->is_object() || (at != &root && at->contains("$id"))) return nullptr;
    const auto found = at->find(key);
    if (found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return at;
}

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  bool NeverAnObject(const Json& schema) {
    if (schema.is_boolean()) return !schema.get<bool>();
    if (!schema.is_object()) return false;
    const bool outside =
        std::exchange(named_, named_ || (&schema != &root_ && schema.contains("$id")));
    const bool is_never = Never(schema);
    named_ = outside;
    return is_never;
  }

 private:
  bool Never(const Json& schema) {
    const auto never = [this](const Json& part) { return NeverAnObject(part); };
    for (const auto& [key, value] : schema.items()) {
      if (key == "type" && (IsOtherType(value) || All(value, IsOtherType))) return true;
      if (key == "const" && NoObject(value)) return true;
      if (key == "enum" && All(value, NoObject)) return true;
      if ((key == "anyOf" || key == "oneOf") && All(value, never)) return true;
      if (key == "allOf" && value.is_array() && std::any_of(value.begin(), value.end(), never)) {
        return true;
      }
      if (key == "$ref" && Leads(value)) return true;
    }
    return false;
  }

  // Whether the reference leads to what is never an object. One that leads back to itself does not.
  bool Leads(const Json& reference) {
    if (named_ || left_-- <= 0) return false;
    const Json* target = Target(root_, reference);
    return target != nullptr && NeverAnObject(*target);
  }

  const Json& root_;
  bool named_ = false;  // within a part with a name of its own, which is what "#" means there
  int left_ = kReferencesMax;
};

}  // namespace

bool NeverAnObject(const Json& schema) {
  return Reader(schema).NeverAnObject(schema);
}

}  // namespace baltoro
