#pragma once

// Where the schemas of a document are: what a reference names, and how to call a schema in a
// message.

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>

#include "base/json.h"
#include "base/keyed_hash.h"
#include "base/status.h"

namespace baltoro {

class SchemaIndex {
 public:
  // `root` outlives the index; `name` is how messages call it.
  static Result<SchemaIndex> Make(const Json& root, std::string name);

  // The schema that `ref`, written in `from`, names. Only what is in the document can be named.
  Result<const Json*> Resolve(const Json* from, const std::string& ref);

  // The schema that $dynamicRef or $recursiveRef names, where it can be known without following
  // the way to it.
  Result<const Json*> ResolveDynamic(const Json* from, const std::string& ref);

  // "name.properties.x.items".
  std::string Path(const Json* schema) const;

  // Takes in a schema made of parts of `origin`; messages call it by the origin's name.
  const Json* Keep(Json schema, const Json* origin);
  bool Kept(const Json* schema) const;

  const Json& root() const { return *root_; }

 private:
  struct Place {
    const Json* parent = nullptr;
    std::string label;  // after the parent's path
    std::string base;   // URI that references are relative to
    bool kept = false;
  };

  SchemaIndex() = default;
  Status Walk(const Json& schema, Place place, int depth);
  Status WalkChildren(const Json& schema, const Place& place, int depth);
  const Json* Pointer(const Json* from, std::string_view pointer) const;

  const Json* root_ = nullptr;
  std::string name_;
  std::unordered_map<const Json*, Place> places_;
  std::unordered_map<std::string, const Json*, KeyedStringHash>
      resources_;  // by URI without fragment
  std::unordered_map<std::string, const Json*, KeyedStringHash> anchors_;  // "uri#name"
  std::unordered_map<std::string, int, KeyedStringHash>
      dynamic_anchors_;  // name -> how many there are
  std::unordered_map<std::string, const Json*, KeyedStringHash> dynamic_;
  bool old_id_ = false;
  size_t kept_size_ = 0;
  std::deque<Json> kept_;
};

// A reference made absolute (RFC 3986), without its fragment.
std::string JoinUri(const std::string& base, std::string_view ref);

}  // namespace baltoro
