#include "grammar/json_schema_index.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/percent.h"

namespace baltoro {
namespace {

constexpr int kMaxDepth = 256;

constexpr std::array<std::string_view, 15> kOneSchema = {"additionalProperties",
                                                         "additionalItems",
                                                         "items",
                                                         "contains",
                                                         "not",
                                                         "if",
                                                         "then",
                                                         "else",
                                                         "propertyNames",
                                                         "unevaluatedProperties",
                                                         "unevaluatedItems",
                                                         "contentSchema",
                                                         "allOf",
                                                         "anyOf",
                                                         "oneOf"};
constexpr std::array<std::string_view, 7> kManySchemas = {
    "properties",       "patternProperties", "$defs",      "definitions",
    "dependentSchemas", "dependencies",      "prefixItems"};

template <size_t N>
bool OneOf(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

bool HasScheme(std::string_view uri) {
  const size_t colon = uri.find(':');
  if (colon == uri.npos || colon == 0) return false;
  return std::all_of(uri.begin(), uri.begin() + static_cast<std::ptrdiff_t>(colon), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '+' ||
           c == '-' || c == '.';
  });
}

std::string RemoveDots(std::string_view path) {
  std::vector<std::string_view> parts;
  const bool absolute = path.starts_with('/');
  bool folder = false;
  for (size_t at = absolute ? 1 : 0; at <= path.size();) {
    const size_t end = std::min(path.find('/', at), path.size());
    const std::string_view part = path.substr(at, end - at);
    folder = part == "." || part == "..";
    if (part == "..") {
      if (!parts.empty()) parts.pop_back();
    } else if (part != ".") {
      parts.push_back(part);
    }
    at = end + 1;
  }
  if (folder) parts.push_back("");
  std::string out = absolute ? "/" : "";
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0) out += '/';
    out += parts[i];
  }
  return out;
}

std::string_view StringAt(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  if (found == schema.end() || !found->is_string()) return {};
  return found->get_ref<const std::string&>();
}

size_t CountValues(const Json& value) {
  size_t out = 1;
  if (value.is_structured()) {
    for (const Json& item : value) out += CountValues(item);
  }
  return out;
}

}  // namespace

std::string JoinUri(const std::string& base, std::string_view ref) {
  ref = ref.substr(0, ref.find('#'));
  if (ref.empty()) return base;
  if (HasScheme(ref)) return std::string(ref);
  const size_t scheme = HasScheme(base) ? base.find(':') + 1 : 0;
  if (ref.starts_with("//")) return base.substr(0, scheme) + std::string(ref);
  size_t path = scheme;
  if (std::string_view(base).substr(scheme).starts_with("//")) {
    path = std::min(base.find('/', scheme + 2), base.size());
  }
  if (ref.starts_with('/')) return base.substr(0, path) + RemoveDots(ref);
  const size_t slash = base.rfind('/');
  const size_t keep = slash == std::string::npos || slash < path ? path : slash + 1;
  std::string merged = base.substr(path, keep - path) + std::string(ref);
  if (path > scheme && !merged.starts_with('/')) merged.insert(0, "/");
  return base.substr(0, path) + RemoveDots(merged);
}

Result<SchemaIndex> SchemaIndex::Make(const Json& root, std::string name) {
  SchemaIndex out;
  out.root_ = &root;
  out.name_ = std::move(name);
  if (root.is_object()) {
    const std::string_view dialect = StringAt(root, "$schema");
    out.old_id_ =
        dialect.find("draft-03") != dialect.npos || dialect.find("draft-04") != dialect.npos;
  }
  out.resources_.emplace("", &root);
  BT_RETURN_IF_ERROR(out.Walk(root, {}, 0));
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion): the depth is bounded.
Status SchemaIndex::Walk(const Json& schema, Place place, int depth) {
  if (depth > kMaxDepth) {
    return InvalidArgument(name_ + ": nested deeper than " + std::to_string(kMaxDepth));
  }
  if (schema.is_object()) {
    std::string_view id = StringAt(schema, "$id");
    if (id.empty() && old_id_) id = StringAt(schema, "id");
    if (!id.empty() && !place.kept) {
      const size_t hash = id.find('#');
      // Drafts up to 7 spell an anchor as an $id that is only a fragment.
      if (hash != id.npos && hash + 1 < id.size()) {
        anchors_.emplace(place.base + std::string(id.substr(hash)), &schema);
      }
      if (hash != 0) {
        place.base = JoinUri(place.base, id);
        resources_.emplace(place.base, &schema);
      }
    }
    for (const char* key : {"$anchor", "$dynamicAnchor"}) {
      const std::string_view anchor = StringAt(schema, key);
      if (anchor.empty() || place.kept) continue;
      anchors_.emplace(place.base + "#" + std::string(anchor), &schema);
      if (std::string_view(key) == "$anchor") continue;
      ++dynamic_anchors_[std::string(anchor)];
      dynamic_.emplace(anchor, &schema);
    }
  }
  const auto [found, is_new] = places_.insert_or_assign(&schema, place);
  (void)found;
  (void)is_new;
  return schema.is_object() ? WalkChildren(schema, place, depth) : Status();
}

// NOLINTNEXTLINE(misc-no-recursion)
Status SchemaIndex::WalkChildren(const Json& schema, const Place& place, int depth) {
  const auto child = [&](const Json& value, std::string label) {
    return Walk(
        value,
        {.parent = &schema, .label = std::move(label), .base = place.base, .kept = place.kept},
        depth + 1);
  };
  for (const auto& [key, value] : schema.items()) {
    const bool many = OneOf(kManySchemas, key);
    if (!many && !OneOf(kOneSchema, key)) continue;
    if (value.is_array()) {
      for (size_t i = 0; i < value.size(); ++i) {
        BT_RETURN_IF_ERROR(child(value[i], "." + key + "[" + std::to_string(i) + "]"));
      }
    } else if (!many) {
      BT_RETURN_IF_ERROR(child(value, "." + key));
    } else if (value.is_object()) {
      for (const auto& [name, item] : value.items()) {
        BT_RETURN_IF_ERROR(child(item, "." + key + "." + name));
      }
    }
  }
  return Status();
}

const Json* SchemaIndex::Pointer(const Json* from, std::string_view pointer) const {
  while (!pointer.empty()) {
    if (pointer[0] != '/') return nullptr;
    const size_t end = std::min(pointer.find('/', 1), pointer.size());
    std::string key;
    for (size_t i = 1; i < end; ++i) {
      if (pointer[i] == '~' && i + 1 < end) {
        key += pointer[++i] == '0' ? '~' : '/';
      } else {
        key += pointer[i];
      }
    }
    pointer.remove_prefix(end);
    if (from->is_object()) {
      const auto found = from->find(key);
      if (found == from->end()) return nullptr;
      from = &*found;
    } else if (from->is_array()) {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc() || stop != key.data() + key.size() || index >= from->size()) {
        return nullptr;
      }
      from = &(*from)[index];
    } else {
      return nullptr;
    }
  }
  return from;
}

Result<const Json*> SchemaIndex::Resolve(const Json* from, const std::string& ref) {
  const auto fail = [&](const char* why) {
    return InvalidArgument(Path(from) + ": the $ref \"" + ref.substr(0, 200) + "\" " + why);
  };
  const auto place = places_.find(from);
  const std::string base = place == places_.end() ? std::string() : place->second.base;
  const std::string uri = JoinUri(base, ref);
  const size_t hash = ref.find('#');
  const std::string written = hash == std::string::npos ? std::string() : ref.substr(hash + 1);
  const auto decoded = PercentDecode(written);
  if (!decoded) return fail("has a % without two hexadecimal digits");
  const std::string& fragment = *decoded;
  const auto resource = resources_.find(uri);
  if (resource == resources_.end()) return fail("is not part of the schema");
  if (!fragment.empty() && fragment[0] != '/') {
    const auto anchor = anchors_.find(uri + "#" + fragment);
    if (anchor == anchors_.end()) return fail("names an anchor that does not exist");
    return anchor->second;
  }
  const Json* target = Pointer(resource->second, fragment);
  if (target == nullptr) return fail("points to nothing");
  if (!places_.contains(target)) {
    BT_RETURN_IF_ERROR(Walk(
        *target, {.parent = resource->second, .label = fragment, .base = uri, .kept = false}, 0));
  }
  return target;
}

Result<const Json*> SchemaIndex::ResolveDynamic(const Json* from, const std::string& ref) {
  const std::string name = ref.substr(std::min(ref.find('#'), ref.size() - 1) + 1);
  const auto count = dynamic_anchors_.find(name);
  if (ref.starts_with('#') && count != dynamic_anchors_.end() && count->second == 1) {
    return dynamic_.at(name);
  }
  if (count == dynamic_anchors_.end()) return Resolve(from, ref);
  return InvalidArgument(Path(from) + ": a $dynamicRef with several targets is not supported");
}

std::string SchemaIndex::Path(const Json* schema) const {
  std::vector<const Place*> way;
  for (auto found = places_.find(schema); found != places_.end();
       found = places_.find(found->second.parent)) {
    way.push_back(&found->second);
  }
  std::string out = name_;
  for (auto place = way.rbegin(); place != way.rend(); ++place) out += (*place)->label;
  return out.starts_with('.') ? out.substr(1) : out;
}

const Json* SchemaIndex::Keep(Json schema, const Json* origin) {
  constexpr size_t kMaxKept = 200'000;
  kept_size_ += CountValues(schema);
  if (kept_size_ > kMaxKept) return nullptr;
  const auto found = places_.find(origin);
  Place place{.parent = origin,
              .label = "",
              .base = found == places_.end() ? std::string() : found->second.base,
              .kept = true};
  kept_.push_back(std::move(schema));
  if (!Walk(kept_.back(), place, 0).ok()) return nullptr;
  return &kept_.back();
}

bool SchemaIndex::Kept(const Json* schema) const {
  const auto found = places_.find(schema);
  return found != places_.end() && found->second.kept;
}

}  // namespace baltoro
