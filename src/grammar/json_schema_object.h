#pragma once

// Which keys an object of a node has, and what their values are.

#include <string>
#include <vector>

#include "grammar/json_schema_node.h"
#include "grammar/json_schema_validate.h"

namespace baltoro {

struct ObjectRules {
  struct Key {
    std::string name;
    SchemaSet schemas;
    bool required = false;
  };
  struct Pattern {
    const Regex* regex = nullptr;
    const Json* schema = nullptr;  // of the value
    const Json* part = nullptr;    // the schema whose patternProperties it is in
  };
  std::vector<Key> keys;  // those that are written by name, in the order of the schema
  // Further names that must not be written.
  std::vector<std::string> never;
  std::vector<Pattern> patterns;
  // Keys that are neither listed nor match a pattern may come.
  bool open = false;
  SchemaSet names;  // that every key must satisfy
};

Result<ObjectRules> MakeObjectRules(const SchemaNode& node,
                                    SchemaContext& context,
                                    SchemaValidator& validator);

// The schemas that the value under `key` must satisfy.
SchemaSet SchemasOfKey(const SchemaNode& node, const std::string& key, SchemaContext& context);

// The schemas that a value must satisfy under a key of which it is known which patterns it matches.
SchemaSet SchemasOfOtherKey(const SchemaNode& node,
                            const std::vector<const ObjectRules::Pattern*>& matched);

void AddToSet(SchemaSet& set, const Json* schema);

}  // namespace baltoro
