#include "grammar/json_schema_expand.h"

#include <algorithm>
#include <utility>

#include "grammar/json_schema_object.h"

namespace baltoro {
namespace {

constexpr int64_t kMaxCombinations = 2000;
constexpr size_t kMaxNodes = 256;
constexpr int kMaxDisjointDepth = 6;
constexpr size_t kMaxChain = 2000;

// Schemas that must hold for the same value, or might.
void InPlace(const Json& schema, std::vector<const Json*>& out) {
  for (const char* key : {"allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"}) {
    const auto found = schema.find(key);
    if (found == schema.end() || !found->is_structured()) continue;
    for (const Json& one : *found) {
      if (one.is_object()) out.push_back(&one);
    }
  }
  for (const char* key : {"not", "if", "then", "else"}) {
    const auto found = schema.find(key);
    if (found != schema.end() && found->is_object()) out.push_back(&*found);
  }
}

// Types that their own bounds leave nothing of.
void DropImpossibleTypes(SchemaNode& node) {
  const auto crossed = [](int64_t min, int64_t max) { return max >= 0 && min > max; };
  if (crossed(node.min_length, node.max_length)) node.types &= ~kJsonString;
  if (crossed(node.min_items, node.max_items)) node.types &= ~kJsonArray;
  const auto least = std::max(node.min_properties, static_cast<int64_t>(node.required.size()));
  if (crossed(least, node.max_properties)) node.types &= ~kJsonObject;
  if (node.lower && node.upper) {
    const int order = node.lower->value.Compare(node.upper->value);
    if (order > 0 || (order == 0 && (node.lower->exclusive || node.upper->exclusive))) {
      node.types &= ~(kJsonInteger | kJsonFraction);
    }
  }
}

bool Apart(const std::optional<NumberBound>& upper, const std::optional<NumberBound>& lower) {
  if (!upper || !lower) return false;
  const int order = upper->value.Compare(lower->value);
  return order < 0 || (order == 0 && (upper->exclusive || lower->exclusive));
}

bool Apart(int64_t max, int64_t min) {
  return max >= 0 && max < min;
}

}  // namespace

Result<std::vector<SchemaNode>> SchemaExpander::Expand(const SchemaSet& schemas) {
  std::vector<SchemaNode> out;
  State state;
  state.pending = schemas;
  if (schemas.size() == 1) state.only = schemas[0];
  int64_t left = kMaxCombinations;
  BT_RETURN_IF_ERROR(Run(std::move(state), out, left));
  for (SchemaNode& node : out) {
    if (!node.values) continue;
    std::erase_if(*node.values, [&](const Json& value) {
      return validator_.CheckAll(schemas, value) == Verdict::kNo;
    });
  }
  std::erase_if(out, [](const SchemaNode& node) { return node.values && node.values->empty(); });
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion): once for each choice, of which `left` bounds the number.
Status SchemaExpander::Run(State state, std::vector<SchemaNode>& out, int64_t& left) {
  const Json* where = state.seen.empty() ? &context_.index.root() : state.seen.front();
  if (--left < 0 || out.size() > kMaxNodes) {
    return context_.Failure(where, "too many combinations of alternatives");
  }
  while (!state.pending.empty()) {
    const Json* schema = state.pending.back();
    state.pending.pop_back();
    if (std::find(state.seen.begin(), state.seen.end(), schema) != state.seen.end()) continue;
    state.seen.push_back(schema);
    BT_RETURN_IF_ERROR(context_.Spend(schema, static_cast<int64_t>(state.seen.size())));
    BT_RETURN_IF_ERROR(CheckCycle(schema));
    BT_ASSIGN_OR_RETURN(const bool possible, Merge(schema, state));
    if (!possible || state.node.types == 0) return Status();
  }
  if (state.choices.empty()) return Finish(std::move(state), out, left);
  const std::vector<Branch> branches = std::move(state.choices.back());
  state.choices.pop_back();
  for (const Branch& branch : branches) {
    State next = state;
    next.pending = branch.schemas;
    if (branch.pick) next.node.picks.push_back(*branch.pick);
    BT_RETURN_IF_ERROR(Run(std::move(next), out, left));
  }
  return Status();
}

// NOLINTNEXTLINE(misc-no-recursion)
Status SchemaExpander::Finish(State state, std::vector<SchemaNode>& out, int64_t& left) {
  DropImpossibleTypes(state.node);
  if (state.node.types == 0) return Status();
  SchemaNode& node = state.node;
  if (node.values) {  // whose members are looked at one by one
    node.picks.clear();
    out.push_back(std::move(node));
    return Status();
  }
  while (!node.picks.empty()) {
    const SchemaNode::OneOfPick pick = node.picks.back();
    node.picks.pop_back();
    const Json& branches = (*pick.schema)["oneOf"];
    std::vector<std::vector<Branch>> added;
    bool unsupported = false;
    for (size_t i = 0; i < branches.size(); ++i) {
      if (i == pick.branch) continue;
      BT_ASSIGN_OR_RETURN(const bool never, NeverValid(node, &branches[i]));
      if (never) continue;
      const std::optional<SchemaSet> others = Negate(&branches[i]);
      if (!others) {
        unsupported = true;
        continue;
      }
      state.negated = true;
      std::vector<Branch> group;
      for (const Json* other : *others) group.push_back({.schemas = {other}, .pick = {}});
      added.push_back(std::move(group));
    }
    if (unsupported) {
      BT_RETURN_IF_ERROR(context_.Unsupported(
          pick.schema, "oneOf", "branches that are not told apart by a type, constant or key"));
    }
    if (!added.empty()) {
      state.choices = std::move(added);
      return Run(std::move(state), out, left);
    }
  }
  if (node.unevaluated != nullptr && state.negated) {
    // What a schema looks at that does not hold, nobody has looked at.
    BT_RETURN_IF_ERROR(
        context_.Unsupported(state.only, "unevaluatedProperties", "beside \"not\" or \"if\""));
  }
  out.push_back(std::move(node));
  return Status();
}

Status SchemaExpander::CheckCycle(const Json* schema) {
  if (!schema->is_object() || cycle_marks_[schema] == 2) return Status();
  struct Step {
    const Json* schema;
    std::vector<const Json*> next;
  };
  std::vector<Step> way;
  const auto enter = [&](const Json* one) -> Status {
    cycle_marks_[one] = 1;
    Step step{.schema = one, .next = {}};
    InPlace(*one, step.next);
    const auto ref = one->find("$ref");
    if (ref != one->end() && ref->is_string()) {
      BT_ASSIGN_OR_RETURN(const Json* target, context_.index.Resolve(one, *ref));
      if (target->is_object()) step.next.push_back(target);
    }
    way.push_back(std::move(step));
    return Status();
  };
  BT_RETURN_IF_ERROR(enter(schema));
  while (!way.empty()) {
    BT_RETURN_IF_ERROR(context_.Spend(schema));
    Step& step = way.back();
    if (step.next.empty()) {
      cycle_marks_[step.schema] = 2;
      way.pop_back();
      continue;
    }
    const Json* next = step.next.back();
    step.next.pop_back();
    const int mark = cycle_marks_[next];
    if (mark == 1) return context_.Failure(next, "the schema refers to itself without end");
    if (way.size() > kMaxChain) return context_.Failure(next, "too long a chain of references");
    if (mark == 0) BT_RETURN_IF_ERROR(enter(next));
  }
  return Status();
}

// NOLINTNEXTLINE(misc-no-recursion): the depth is bounded.
Result<bool> SchemaExpander::NeverValid(const SchemaNode& node, const Json* schema) {
  if (node.values) {
    return std::all_of(node.values->begin(), node.values->end(), [&](const Json& value) {
      return validator_.Check(*schema, value) == Verdict::kNo;
    });
  }
  if (disjoint_depth_ >= kMaxDisjointDepth) return false;
  ++disjoint_depth_;
  const auto decide = [&]() -> Result<bool> {
    BT_ASSIGN_OR_RETURN(const std::vector<SchemaNode> others, Expand({schema}));
    for (const SchemaNode& other : others) {
      BT_ASSIGN_OR_RETURN(const bool apart, AreApart(node, other));
      if (!apart) return false;
    }
    return true;
  };
  Result<bool> out = decide();
  --disjoint_depth_;
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion)
Result<bool> SchemaExpander::AreApart(const SchemaNode& node, const SchemaNode& other) {
  if (other.values) {
    return std::all_of(other.values->begin(), other.values->end(), [&](const Json& value) {
      return (node.types & JsonTypeOf(value)) == 0 || ContainsEqual(node.excluded, value);
    });
  }
  const int common = node.types & other.types;
  if ((common & (kJsonNull | kJsonBoolean)) != 0) return false;
  if ((common & (kJsonInteger | kJsonFraction)) != 0 && !Apart(node.upper, other.lower) &&
      !Apart(other.upper, node.lower)) {
    return false;
  }
  if ((common & kJsonString) != 0 && !Apart(node.max_length, other.min_length) &&
      !Apart(other.max_length, node.min_length)) {
    return false;
  }
  if ((common & kJsonArray) != 0 && !Apart(node.max_items, other.min_items) &&
      !Apart(other.max_items, node.min_items)) {
    return false;
  }
  if ((common & kJsonObject) != 0) return ObjectsAreApart(node, other);
  return true;
}

// NOLINTNEXTLINE(misc-no-recursion)
Result<bool> SchemaExpander::ObjectsAreApart(const SchemaNode& node, const SchemaNode& other) {
  BT_ASSIGN_OR_RETURN(const ObjectRules rules, MakeObjectRules(node, context_, validator_));
  if (!rules.open && rules.patterns.empty()) {
    for (const std::string& name : other.required) {
      const bool written = std::any_of(rules.keys.begin(), rules.keys.end(),
                                       [&](const auto& key) { return key.name == name; });
      if (!written) return true;
    }
  }
  for (const std::string& name : other.required) {
    if (std::find(rules.never.begin(), rules.never.end(), name) != rules.never.end()) return true;
  }
  for (const ObjectRules::Key& key : rules.keys) {
    if (!key.required) continue;
    const SchemaSet wanted = SchemasOfKey(other, key.name, context_);
    if (wanted.empty()) continue;
    BT_ASSIGN_OR_RETURN(const std::vector<SchemaNode> values, Expand(key.schemas));
    for (const Json* schema : wanted) {
      bool never = true;
      for (const SchemaNode& value : values) {
        BT_ASSIGN_OR_RETURN(const bool apart, NeverValid(value, schema));
        never &= apart;
      }
      if (never) return true;
    }
  }
  return false;
}

}  // namespace baltoro
