#pragma once

// A schema with its references followed and its alternatives taken apart: a value is valid if one
// of the nodes of its schemas takes it.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "grammar/json_number.h"
#include "grammar/json_schema_context.h"

namespace baltoro {

// Schemas that a value must satisfy together. Sorted, each once; empty: any value.
using SchemaSet = std::vector<const Json*>;

struct SchemaNode {
  struct StringRule {
    const Json* schema = nullptr;  // that demands it
    std::string pattern;
    bool is_format = false;  // `pattern` is the name of a format
    bool excluded = false;   // must not match
  };
  struct ContainsRule {
    const Json* schema = nullptr;
    const Json* item = nullptr;
    int64_t min = 1;
  };
  // Outputs of this node must not be valid under the other branches of a oneOf.
  struct OneOfPick {
    const Json* schema = nullptr;
    size_t branch = 0;
    bool operator==(const OneOfPick&) const = default;
  };

  uint8_t types = kJsonAllTypes;
  std::optional<std::vector<Json>> values;  // nothing else may come
  std::vector<Json> excluded;

  std::optional<NumberBound> lower, upper;
  std::vector<std::pair<const Json*, Decimal>> multiples;

  int64_t min_length = 0, max_length = GrammarBuilder::kUnbounded;
  std::vector<StringRule> strings;

  int64_t min_items = 0, max_items = GrammarBuilder::kUnbounded;
  const Json* unique_items = nullptr;  // the schema that demands it
  std::vector<ContainsRule> contains;

  int64_t min_properties = 0, max_properties = GrammarBuilder::kUnbounded;
  const Json* properties_bound = nullptr;  // the schema that sets min_properties
  std::vector<std::string> required;
  const Json* unevaluated = nullptr;  // schema of properties that no part looks at

  std::vector<const Json*> parts;  // schemas with keywords for the members of arrays and objects
  std::vector<OneOfPick> picks;
};

}  // namespace baltoro
