#include "grammar/json_schema_object.h"

#include <algorithm>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/keyed_hash.h"

namespace baltoro {
namespace {

const Json* Find(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

}  // namespace

void AddToSet(SchemaSet& set, const Json* schema) {
  const auto at = std::lower_bound(set.begin(), set.end(), schema);
  if (at == set.end() || *at != schema) set.insert(at, schema);
}

SchemaSet SchemasOfKey(const SchemaNode& node, const std::string& key, SchemaContext& context) {
  SchemaSet out;
  bool looked_at = false;
  for (const Json* part : node.parts) {
    bool found = false;
    if (const Json* properties = Find(*part, "properties")) {
      const auto value = properties->find(key);
      if (value != properties->end()) {
        AddToSet(out, &*value);
        found = true;
      }
    }
    if (const Json* patterns = Find(*part, "patternProperties")) {
      for (const auto& [pattern, schema] : patterns->items()) {
        const Regex* regex = context.FindRegex(pattern);
        if (regex == nullptr || context.spent()) continue;
        // Where dialects disagree both follow: the pattern's schema, and that of other keys.
        const Result<bool> maybe = regex->Matches(key, {.widest = true}, context.budget());
        const Result<bool> sure = regex->Matches(key, {}, context.budget());
        if (!maybe.ok() || maybe.value()) AddToSet(out, &schema);
        if (sure.ok() && sure.value()) found = true;
      }
    }
    if (!found) {
      if (const Json* additional = Find(*part, "additionalProperties")) {
        AddToSet(out, additional);
        found = true;
      }
    }
    looked_at |= found;
  }
  if (!looked_at && node.unevaluated != nullptr) AddToSet(out, node.unevaluated);
  return out;
}

SchemaSet SchemasOfOtherKey(const SchemaNode& node,
                            const std::vector<const ObjectRules::Pattern*>& matched) {
  SchemaSet out;
  bool looked_at = false;
  for (const Json* part : node.parts) {
    bool found = false;
    for (const ObjectRules::Pattern* pattern : matched) {
      if (pattern->part != part) continue;
      AddToSet(out, pattern->schema);
      found = true;
    }
    if (!found) {
      if (const Json* additional = Find(*part, "additionalProperties")) {
        AddToSet(out, additional);
        found = true;
      }
    }
    looked_at |= found;
  }
  if (!looked_at && node.unevaluated != nullptr) AddToSet(out, node.unevaluated);
  return out;
}

Result<ObjectRules> MakeObjectRules(const SchemaNode& node,
                                    SchemaContext& context,
                                    SchemaValidator& validator) {
  ObjectRules out;
  bool declares = false, opened = false;
  std::vector<std::string> names;
  std::unordered_set<std::string, KeyedStringHash> listed_names;
  const auto add = [&](const std::string& name) {
    if (listed_names.insert(name).second) names.push_back(name);
  };
  for (const Json* part : node.parts) {
    BT_RETURN_IF_ERROR(context.Spend(part));
    if (const Json* properties = Find(*part, "properties")) {
      BT_RETURN_IF_ERROR(context.Spend(part, static_cast<int64_t>(properties->size())));
      for (const auto& [name, schema] : properties->items()) add(name);
      // What we excluded ourselves does not make a free object one with declared keys.
      declares |= !properties->empty() && !context.index.Kept(part);
    }
    if (const Json* patterns = Find(*part, "patternProperties")) {
      for (const auto& [pattern, schema] : patterns->items()) {
        std::string why;
        const Regex* regex = context.FindRegex(pattern, &why);
        if (regex == nullptr) {
          BT_RETURN_IF_ERROR(context.Unsupported(part, "patternProperties", why));
          continue;
        }
        out.patterns.push_back({.regex = regex, .schema = &schema, .part = part});
        declares = true;
      }
    }
    if (const Json* additional = Find(*part, "additionalProperties"))
      opened |= *additional != false;
    if (const Json* property_names = Find(*part, "propertyNames")) {
      AddToSet(out.names, property_names);
      // A list of names is a list of keys.
      const Json* listed = property_names->is_object() ? Find(*property_names, "enum") : nullptr;
      if (listed != nullptr && listed->is_array()) {
        for (const Json& name : *listed) {
          if (name.is_string() && !declares) add(name.get<std::string>());
        }
        declares = true;
      }
    }
  }
  for (const std::string& name : node.required) add(name);
  if (node.unevaluated != nullptr) opened |= *node.unevaluated != false;
  out.open = opened || !declares;
  for (const std::string& name : names) {
    const size_t looked_through = names.size() + node.required.size() + node.parts.size();
    BT_RETURN_IF_ERROR(context.Charge(nullptr, static_cast<int64_t>(4 * looked_through)));
    const bool required =
        std::find(node.required.begin(), node.required.end(), name) != node.required.end();
    SchemaSet schemas = SchemasOfKey(node, name, context);
    const bool named = std::all_of(out.names.begin(), out.names.end(), [&](const Json* rule) {
      return validator.Check(*rule, Json(name)) == Verdict::kYes;
    });
    const bool possible = named && std::none_of(schemas.begin(), schemas.end(),
                                                [](const Json* s) { return *s == false; });
    if (possible || required) {
      if (!possible) schemas = {};
      out.keys.push_back({.name = name, .schemas = std::move(schemas), .required = required});
    }
    // A required key that cannot be there stands in both lists.
    if (!possible) out.never.push_back(name);
  }
  return out;
}

}  // namespace baltoro
