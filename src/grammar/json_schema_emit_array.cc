// Arrays of SchemaEmitter.

#include <algorithm>
#include <utility>

#include "grammar/json_schema_emit.h"

namespace baltoro {
namespace {

constexpr size_t kMaxMembers = 256;
constexpr size_t kMaxPrefix = 4096;

const Json* Find(const Json& schema, const char* key) {
  const auto found = schema.find(key);
  return found == schema.end() ? nullptr : &*found;
}

}  // namespace

struct SchemaEmitter::ArrayRules {
  std::vector<Expr> first;  // the items that have schemas of their own
  MaybeExpr rest;           // those after them, if there can be any
  SchemaSet rest_schemas;
  int64_t min = 0, max = GrammarBuilder::kUnbounded;
  bool possible = true;
};

// NOLINTNEXTLINE(misc-no-recursion): the depth of schemas is bounded.
Result<SchemaEmitter::ArrayRules> SchemaEmitter::MakeArrayRules(const SchemaNode& node) {
  struct Part {
    const Json* first = nullptr;  // array of schemas
    const Json* rest = nullptr;
  };
  ArrayRules out;
  out.min = node.min_items;
  out.max = node.max_items;
  std::vector<Part> parts;
  size_t length = 0;
  bool opened = false;
  for (const Json* schema : node.parts) {
    Part part;
    part.first = Find(*schema, "prefixItems");
    part.rest = Find(*schema, "items");
    if (part.rest == nullptr) part.rest = Find(*schema, "unevaluatedItems");
    if (part.rest != nullptr && part.rest->is_array()) {
      part.first = part.rest;
      part.rest = Find(*schema, "additionalItems");
    }
    if (part.first != nullptr) length = std::max(length, part.first->size());
    opened |= part.rest != nullptr && *part.rest != false;
    parts.push_back(part);
  }
  if (length > kMaxPrefix) return context_.Failure(node.parts[0], "this many prefixItems");
  const auto schemas_at = [&](size_t index) {
    SchemaSet schemas;
    for (const Part& part : parts) {
      if (part.first != nullptr && index < part.first->size()) {
        AddToSet(schemas, &(*part.first)[index]);
      } else if (part.rest != nullptr) {
        AddToSet(schemas, part.rest);
      }
    }
    return schemas;
  };
  const auto end_at = [&](size_t index) {
    const auto limit = static_cast<int64_t>(index);
    out.max = out.max < 0 ? limit : std::min(out.max, limit);
  };
  for (size_t i = 0; i < length; ++i) {
    BT_ASSIGN_OR_RETURN(const MaybeExpr item, Value(schemas_at(i)));
    if (!item) {
      end_at(i);
      break;
    }
    out.first.push_back(*item);
  }
  if (out.first.size() == length) {
    out.rest_schemas = schemas_at(length);
    BT_ASSIGN_OR_RETURN(out.rest, Value(out.rest_schemas));
    // Items beyond a list of schemas are like keys that are not declared.
    const bool unasked = length > 0 && !opened && node.min_items <= static_cast<int64_t>(length);
    if (!out.rest || unasked) end_at(length);
  }
  out.possible = out.max < 0 || out.min <= out.max;
  return out;
}

// Items in their order, `min` to `max` of them.
SchemaEmitter::Expr SchemaEmitter::ArrayOf(const std::vector<Expr>& first,
                                           MaybeExpr rest,
                                           int64_t min,
                                           int64_t max) {
  if (max == 0) return text_.Brackets('[', std::nullopt, true, ']');
  const Expr comma = text_.Comma();
  const auto after_comma = [&](std::initializer_list<Expr> parts) {
    std::vector<Expr> all = {comma};
    all.insert(all.end(), parts.begin(), parts.end());
    return builder_.Sequence(all);
  };
  const auto length = static_cast<int64_t>(first.size());
  // From the last to the first: what may follow once `i` items are there.
  Expr tail = builder_.Empty();
  if (rest) {
    const int64_t fixed = std::max<int64_t>(length, 1);
    tail =
        builder_.Repeat(after_comma({*rest}), std::max<int64_t>(min - fixed, 0),
                        max < 0 ? GrammarBuilder::kUnbounded : std::max<int64_t>(max - fixed, 0));
  }
  for (int64_t i = length - 1; i >= 1; --i) {
    if (max >= 0 && i >= max) {
      tail = builder_.Empty();
      continue;
    }
    const Expr item = after_comma({first[static_cast<size_t>(i)], tail});
    tail = i < min ? item : builder_.Optional(item);
  }
  const Expr head[] = {first.empty() ? *rest : first[0], tail};
  return text_.Brackets('[', builder_.Sequence(head), min == 0, ']');
}

// NOLINTNEXTLINE(misc-no-recursion)
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::Array(const SchemaNode& node) {
  for (const Json& value : node.excluded) {
    if (value.is_array() && !value.empty()) {
      BT_RETURN_IF_ERROR(
          context_.Unsupported(&context_.index.root(), "not", "an array as a constant"));
    }
  }
  const bool free = node.parts.empty() && node.contains.empty() && node.unique_items == nullptr &&
                    node.min_items == 0 && node.max_items < 0;
  if (free) return MaybeExpr(text_.Array());
  BT_ASSIGN_OR_RETURN(const ArrayRules rules, MakeArrayRules(node));
  if (!rules.possible) return MaybeExpr();
  if (node.unique_items != nullptr && (rules.max < 0 || rules.max > 1)) {
    BT_ASSIGN_OR_RETURN(const MaybeExpr unique, UniqueArray(node, rules));
    if (unique) return unique;
    BT_RETURN_IF_ERROR(context_.Unsupported(node.unique_items, "uniqueItems",
                                            "items that are not a list of constants"));
  }
  if (!node.contains.empty()) return ContainingArray(node, rules);
  return MaybeExpr(ArrayOf(rules.first, rules.rest, rules.min, rules.max));
}

// Items from a list of constants, each at most once. Nothing if they are not such a list.
// NOLINTNEXTLINE(misc-no-recursion)
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::UniqueArray(const SchemaNode& node,
                                                                      const ArrayRules& rules) {
  if (!rules.first.empty() || !rules.rest || !node.contains.empty()) return MaybeExpr();
  BT_ASSIGN_OR_RETURN(const std::vector<SchemaNode> items, expander_.Expand(rules.rest_schemas));
  std::vector<Json> values;
  const auto add = [&](const Json& value) {
    if (!ContainsEqual(values, value)) values.push_back(value);
  };
  for (const SchemaNode& item : items) {
    if (!item.values && (item.types & ~(kJsonNull | kJsonBoolean)) != 0) return MaybeExpr();
    if (item.values) {
      for (const Json& value : *item.values) add(value);
      continue;
    }
    for (const Json& value : {Json(true), Json(false), Json()}) {
      if ((item.types & JsonTypeOf(value)) != 0 && !ContainsEqual(item.excluded, value)) add(value);
    }
  }
  if (values.size() > kMaxMembers) return MaybeExpr();
  GrammarBuilder::Members members;
  members.separator = text_.Comma();
  for (const Json& value : values) {
    members.members.push_back({.item = text_.Constant(value), .required = false});
  }
  members.min_total = std::max<int64_t>(rules.min, 1);
  members.max_total = rules.max;
  if (rules.max == 0 || members.min_total > static_cast<int64_t>(values.size())) {
    if (rules.min > 0) return MaybeExpr(builder_.Nothing());
    return MaybeExpr(text_.Brackets('[', std::nullopt, true, ']'));
  }
  return MaybeExpr(text_.Brackets('[', builder_.AnyOrder(members), rules.min == 0, ']'));
}

// NOLINTNEXTLINE(misc-no-recursion)
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::ContainingArray(const SchemaNode& node,
                                                                          const ArrayRules& rules) {
  const SchemaNode::ContainsRule& rule = node.contains[0];
  if (node.contains.size() > 1 || !rules.first.empty() || rule.min > static_cast<int64_t>(1000)) {
    BT_RETURN_IF_ERROR(context_.Unsupported(rule.schema, "contains", "beside other items"));
    return MaybeExpr(ArrayOf(rules.first, rules.rest, rules.min, rules.max));
  }
  SchemaSet both = rules.rest_schemas;
  AddToSet(both, rule.item);
  BT_ASSIGN_OR_RETURN(const MaybeExpr wanted, Value(both));
  if (!wanted || (rules.max >= 0 && rules.max < rule.min)) return MaybeExpr();
  if (rules.min <= rule.min && rules.max < 0) {
    // Any items before each, and any after the last.
    const Expr comma = text_.Comma();
    const Expr before[] = {*rules.rest, comma}, after[] = {comma, *rules.rest};
    const Expr any = builder_.Repeat(builder_.Sequence(after), 0, GrammarBuilder::kUnbounded);
    const Expr next[] = {any, comma, *wanted};
    const Expr inside[] = {
        builder_.Repeat(builder_.Sequence(before), 0, GrammarBuilder::kUnbounded), *wanted,
        builder_.Repeat(builder_.Sequence(next), rule.min - 1, rule.min - 1), any};
    return MaybeExpr(text_.Brackets('[', builder_.Sequence(inside), false, ']'));
  }
  // What must be there comes first: its place would have to be counted beside the items.
  const std::vector<Expr> first(static_cast<size_t>(rule.min), *wanted);
  return MaybeExpr(ArrayOf(first, rules.rest, std::max(rules.min, rule.min), rules.max));
}

}  // namespace baltoro
