#pragma once

// From schemas to nodes: references, allOf, anyOf, oneOf, not, if and their kin are worked out
// here, and what remains are plain demands.

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "grammar/json_schema_node.h"
#include "grammar/json_schema_validate.h"

namespace baltoro {

class SchemaExpander {
 public:
  explicit SchemaExpander(SchemaContext& context) : context_(context), validator_(context) {}

  // Every value that a node takes is valid under all of `schemas`. No nodes: nothing is valid.
  Result<std::vector<SchemaNode>> Expand(const SchemaSet& schemas);

  SchemaValidator& validator() { return validator_; }

 private:
  friend class SchemaMerger;

  // Schemas to satisfy as well.
  struct Branch {
    SchemaSet schemas;
    std::optional<SchemaNode::OneOfPick> pick;
  };
  struct State {
    std::vector<const Json*> pending;
    std::vector<const Json*> seen;
    SchemaNode node;
    std::vector<std::vector<Branch>> choices;
    bool negated = false;        // some demand is the opposite of a schema
    const Json* only = nullptr;  // the schema that was asked about, if it is one alone
  };

  Status Run(State state, std::vector<SchemaNode>& out, int64_t& left);
  Status Finish(State state, std::vector<SchemaNode>& out, int64_t& left);
  // Takes one schema's demands into the state; false: nothing can satisfy them all.
  Result<bool> Merge(const Json* schema, State& state);
  Status CheckCycle(const Json* schema);

  // Schemas of which a value satisfies one if and only if it does not satisfy `schema`, or only if;
  // nothing if that cannot be said in plain demands.
  std::optional<SchemaSet> Negate(const Json* schema);
  std::optional<SchemaSet> MakeNegation(const Json* schema);

  // Whether no output of `node` is valid under `schema`.
  Result<bool> NeverValid(const SchemaNode& node, const Json* schema);
  Result<bool> AreApart(const SchemaNode& node, const SchemaNode& other);
  Result<bool> ObjectsAreApart(const SchemaNode& node, const SchemaNode& other);

  SchemaContext& context_;
  SchemaValidator validator_;
  std::map<const Json*, std::optional<SchemaSet>> negations_;
  std::map<const Json*, int> cycle_marks_;  // 1: on the way, 2: done
  int disjoint_depth_ = 0;
};

}  // namespace baltoro
