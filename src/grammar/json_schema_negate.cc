// The opposite of a schema, as schemas of which one must hold. Each keyword that says something
// gives one or more; leaving one out only narrows what is written.

#include <algorithm>
#include <string>
#include <utility>

#include "grammar/json_schema_expand.h"

namespace baltoro {
namespace {

constexpr size_t kMaxAlternatives = 64;

Json NotOf(const Json& schema) {
  if (schema.is_boolean()) return Json(!schema.get<bool>());
  Json out = Json::object();
  out["not"] = schema;
  return out;
}

Json OfType(const char* type) {
  Json out = Json::object();
  out["type"] = type;
  return out;
}

// keyword -> the opposite bound, and by how much it lies beyond; the type it speaks of.
struct Bound {
  const char* keyword;
  const char* opposite;
  int step;
  const char* type;
};
constexpr Bound kBounds[] = {{"minLength", "maxLength", -1, "string"},
                             {"maxLength", "minLength", 1, "string"},
                             {"minItems", "maxItems", -1, "array"},
                             {"maxItems", "minItems", 1, "array"},
                             {"minProperties", "maxProperties", -1, "object"},
                             {"maxProperties", "minProperties", 1, "object"},
                             {"minimum", "exclusiveMaximum", 0, "number"},
                             {"maximum", "exclusiveMinimum", 0, "number"},
                             {"exclusiveMinimum", "maximum", 0, "number"},
                             {"exclusiveMaximum", "minimum", 0, "number"}};

}  // namespace

std::optional<SchemaSet> SchemaExpander::Negate(const Json* schema) {
  const auto [found, is_new] = negations_.try_emplace(schema);
  // While it is made, a schema that leads back to itself finds nothing here.
  if (is_new) {
    std::optional<SchemaSet> made = MakeNegation(schema);
    negations_[schema] = made;
    return made;
  }
  return found->second;
}

std::optional<SchemaSet> SchemaExpander::MakeNegation(const Json* schema) {
  static const Json kAnything = true;
  if (schema->is_boolean()) {
    return schema->get<bool>() ? SchemaSet() : SchemaSet{&kAnything};
  }
  if (!schema->is_object() || !context_.Spend(schema).ok()) return std::nullopt;
  SchemaSet out;
  bool missing = false;
  const auto keep = [&](Json alternative) {
    const Json* kept = context_.index.Keep(std::move(alternative), schema);
    if (kept == nullptr || out.size() >= kMaxAlternatives) {
      missing = true;
    } else {
      out.push_back(kept);
    }
  };
  const auto keep_all = [&](const std::optional<SchemaSet>& more) {
    if (!more || out.size() + more->size() > kMaxAlternatives) {
      missing = true;
    } else {
      out.insert(out.end(), more->begin(), more->end());
    }
  };
  const bool old_bounds = schema->value("exclusiveMinimum", Json()).is_boolean() ||
                          schema->value("exclusiveMaximum", Json()).is_boolean();

  for (const auto& [key, demand] : schema->items()) {
    const auto bound =
        std::find_if(std::begin(kBounds), std::end(kBounds),
                     [&, name = key](const Bound& one) { return name == one.keyword; });
    if (bound != std::end(kBounds)) {
      if (!demand.is_number() || old_bounds) {
        missing = true;
        continue;
      }
      Json other = OfType(bound->type);
      if (bound->step == 0) {
        other[bound->opposite] = demand;
      } else {
        const int64_t limit = static_cast<int64_t>(demand.get<double>()) + bound->step;
        if (limit < 0) continue;  // at least 0 always holds
        other[bound->opposite] = limit;
      }
      keep(std::move(other));
    } else if (key == "type") {
      uint8_t types = 0;
      if (!TypesOf(demand, types)) {
        missing = true;
        continue;
      }
      Json other = Json::object();
      other[kTypeBits] = static_cast<int>(kJsonAllTypes & ~types);
      if (types != kJsonAllTypes) keep(std::move(other));
    } else if (key == "const" || (key == "enum" && demand.is_array())) {
      Json other = Json::object();
      other[kNotValues] = key == "const" ? Json::array({demand}) : demand;
      keep(std::move(other));
    } else if (key == "required" && demand.is_array()) {
      for (const Json& name : demand) {
        if (!name.is_string()) continue;
        Json other = OfType("object");
        other["properties"][name.get<std::string>()] = false;
        keep(std::move(other));
      }
    } else if (key == "properties" && demand.is_object()) {
      for (const auto& [name, inside] : demand.items()) {
        if (inside == true) continue;
        Json other = OfType("object");
        other["required"] = Json::array({name});
        other["properties"][name] = NotOf(inside);
        keep(std::move(other));
      }
    } else if (key == "pattern" && demand.is_string()) {
      Json other = OfType("string");
      other[kNotPattern] = demand;
      keep(std::move(other));
    } else if (key == "items" && !demand.is_array() && !schema->contains("prefixItems")) {
      Json other = OfType("array");
      other["contains"] = NotOf(demand);
      keep(std::move(other));
    } else if (key == "contains" && !schema->contains("minContains") &&
               !schema->contains("maxContains")) {
      Json other = OfType("array");
      other["items"] = NotOf(demand);
      keep(std::move(other));
    } else if (key == "not") {
      out.push_back(&demand);
    } else if (key == "allOf" && demand.is_array()) {
      for (const Json& one : demand) keep_all(Negate(&one));
    } else if (key == "anyOf" && demand.is_array()) {
      if (std::find(demand.begin(), demand.end(), Json(true)) != demand.end()) continue;
      Json other = Json::object();
      for (const Json& one : demand) other["allOf"].push_back(NotOf(one));
      if (!demand.empty()) keep(std::move(other));
    } else if (key == "$ref" && demand.is_string()) {
      const Result<const Json*> target = context_.index.Resolve(schema, demand);
      keep_all(target.ok() ? Negate(target.value()) : std::nullopt);
    } else if (key == kNotValues && context_.index.Kept(schema)) {
      Json other = Json::object();
      other["enum"] = demand;
      keep(std::move(other));
    } else if (!IsAnnotation(key)) {
      missing = true;
    }
  }
  if (out.empty() && missing) return std::nullopt;
  return out;
}

}  // namespace baltoro
