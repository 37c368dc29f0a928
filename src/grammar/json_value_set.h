#pragma once

// Values of a schema, each once, found in a time that does not grow with their number. One thread.

#include <cstddef>
#include <unordered_set>

#include "base/json.h"
#include "grammar/json_schema_context.h"

namespace baltoro {

// Equal is what JsonEqual calls so. Values are not copied: they must stay where they are.
class JsonValueSet {
 public:
  // False: it holds such a value already.
  bool Add(const Json& value) { return values_.insert(&value).second; }
  bool Contains(const Json& value) const { return values_.contains(&value); }

 private:
  struct Hash {
    size_t operator()(const Json* value) const { return Of(*value); }
    static size_t Of(const Json& value);
  };
  struct Equal {
    bool operator()(const Json* left, const Json* right) const { return JsonEqual(*left, *right); }
  };
  std::unordered_set<const Json*, Hash, Equal> values_;
};

}  // namespace baltoro
