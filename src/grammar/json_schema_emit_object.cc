// Objects of SchemaEmitter.

#include <algorithm>
#include <utility>

#include "grammar/json_schema_emit.h"

namespace baltoro {
namespace {

constexpr size_t kMaxAnyOrder = 256;
// With more patterns, a key matches exactly one of them or none.
constexpr size_t kMaxOverlapping = 3;

}  // namespace

// NOLINTNEXTLINE(misc-no-recursion): the depth of schemas is bounded.
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::Object(const SchemaNode& node) {
  for (const Json& value : node.excluded) {
    if (value.is_object() && !value.empty()) {
      BT_RETURN_IF_ERROR(
          context_.Unsupported(&context_.index.root(), "not", "an object as a constant"));
    }
  }
  const bool free = node.parts.empty() && node.required.empty() && node.unevaluated == nullptr &&
                    node.min_properties == 0 && node.max_properties < 0;
  if (free) return MaybeExpr(text_.Object());

  BT_ASSIGN_OR_RETURN(const ObjectRules rules,
                      MakeObjectRules(node, context_, expander_.validator()));
  GrammarBuilder::Members members;
  members.separator = text_.Comma();
  members.min_total = node.min_properties;
  members.max_total = node.max_properties;
  bool possible = true;
  BT_RETURN_IF_ERROR(AddKeys(rules, members, possible));
  if (!possible) return MaybeExpr();
  BT_RETURN_IF_ERROR(AddExtras(node, rules, members));
  if (!members.extra.empty() && node.min_properties > 1 &&
      node.min_properties > static_cast<int64_t>(node.required.size())) {
    // A key may be written twice, and then counts once.
    BT_RETURN_IF_ERROR(context_.Unsupported(
        node.properties_bound != nullptr ? node.properties_bound : &context_.index.root(),
        "minProperties", "over 1, where keys are free"));
  }
  return ObjectOf(members);
}

// NOLINTNEXTLINE(misc-no-recursion)
Status SchemaEmitter::AddKeys(const ObjectRules& rules,
                              GrammarBuilder::Members& members,
                              bool& possible) {
  for (const ObjectRules::Key& key : rules.keys) {
    const bool never =
        std::find(rules.never.begin(), rules.never.end(), key.name) != rules.never.end();
    MaybeExpr value;
    if (!never) {
      BT_ASSIGN_OR_RETURN(value, Value(key.schemas));
    }
    if (value) {
      members.members.push_back(
          {.item = text_.Member(text_.PlainString(key.name), *value), .required = key.required});
    } else if (key.required) {
      possible = false;
    }
  }
  return Status();
}

// The keys that match exactly the patterns `matched`, are not listed, and satisfy propertyNames.
// NOLINTNEXTLINE(misc-no-recursion)
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::ExtraKey(
    const ObjectRules& rules, const std::vector<const ObjectRules::Pattern*>& matched) {
  MaybeExpr out;
  const auto meet = [&](Expr more) { out = out ? builder_.And(*out, more) : more; };
  const auto exclude = [&](Expr less) {
    out = builder_.And(
        out ? *out : builder_.Repeat(text_.PlainCharacter(), 0, GrammarBuilder::kUnbounded),
        builder_.Not(less));
  };
  for (const ObjectRules::Pattern* pattern : matched) {
    meet(pattern->regex->Add(builder_, {.json_spelling = true}));
  }
  if (!rules.names.empty()) {
    BT_ASSIGN_OR_RETURN(const std::vector<SchemaNode> names, expander_.Expand(rules.names));
    std::vector<Expr> ways;
    for (const SchemaNode& name : names) {
      if (!name.values && (name.types & kJsonString) == 0) continue;
      BT_ASSIGN_OR_RETURN(const MaybeExpr way, PlainText(name));
      if (way) ways.push_back(*way);
    }
    if (ways.empty()) return MaybeExpr();
    meet(builder_.Choice(ways));
  }
  const size_t excluded = rules.keys.size() + rules.never.size() + 64 * rules.patterns.size();
  BT_RETURN_IF_ERROR(context_.Charge(nullptr, static_cast<int64_t>(8 * excluded)));
  std::vector<Expr> listed;
  for (const ObjectRules::Key& key : rules.keys) {
    listed.push_back(builder_.Literal(JsonText::PlainSpelling(key.name)));
  }
  for (const std::string& name : rules.never) {
    listed.push_back(builder_.Literal(JsonText::PlainSpelling(name)));
  }
  if (!listed.empty()) exclude(builder_.Choice(listed));
  for (const ObjectRules::Pattern& pattern : rules.patterns) {
    if (std::find(matched.begin(), matched.end(), &pattern) != matched.end()) continue;
    exclude(pattern.regex->Add(builder_, {.json_spelling = true, .widest = true}));
  }
  if (!out) return MaybeExpr(text_.String());
  const Expr quote = builder_.Literal("\"");
  const Expr parts[] = {quote, *out, quote};
  return MaybeExpr(builder_.Sequence(parts));
}

// NOLINTNEXTLINE(misc-no-recursion)
Status SchemaEmitter::AddExtras(const SchemaNode& node,
                                const ObjectRules& rules,
                                GrammarBuilder::Members& members) {
  const size_t count = rules.patterns.size();
  std::vector<std::vector<const ObjectRules::Pattern*>> subsets;
  if (rules.open) subsets.emplace_back();
  if (count <= kMaxOverlapping) {
    for (size_t bits = 1; bits < size_t{1} << count; ++bits) {
      subsets.emplace_back();
      for (size_t i = 0; i < count; ++i) {
        if ((bits >> i & 1) != 0) subsets.back().push_back(&rules.patterns[i]);
      }
    }
  } else {
    for (const ObjectRules::Pattern& pattern : rules.patterns) subsets.push_back({&pattern});
  }
  for (const auto& matched : subsets) {
    const SchemaSet schemas = SchemasOfOtherKey(node, matched);
    BT_ASSIGN_OR_RETURN(const MaybeExpr value, Value(schemas));
    if (!value) continue;
    BT_ASSIGN_OR_RETURN(const MaybeExpr key, ExtraKey(rules, matched));
    if (key) members.extra.push_back(text_.Member(*key, *value));
  }
  return Status();
}

std::optional<SchemaEmitter::Expr> SchemaEmitter::ObjectOf(const GrammarBuilder::Members& members) {
  const bool required = std::any_of(members.members.begin(), members.members.end(),
                                    [](const auto& one) { return one.required; });
  const bool may_be_empty = !required && members.min_total == 0;
  const auto count = static_cast<int64_t>(members.members.size());
  const bool too_few = members.extra.empty() && members.min_total > count;
  MaybeExpr inside;
  if (members.max_total != 0 && !too_few && (count > 0 || !members.extra.empty())) {
    GrammarBuilder::Members some = members;
    some.min_total = std::max<int64_t>(members.min_total, 1);
    inside = members.members.size() <= kMaxAnyOrder ? builder_.AnyOrder(some) : InGroups(members);
  }
  if (!inside && !may_be_empty) return std::nullopt;
  return text_.Brackets('{', inside, may_be_empty, '}');
}

// Members in groups that follow each other, each in any order.
std::optional<SchemaEmitter::Expr> SchemaEmitter::InGroups(const GrammarBuilder::Members& members) {
  std::vector<GrammarBuilder::Member> sorted = members.members;
  std::stable_partition(sorted.begin(), sorted.end(), [](const auto& one) { return one.required; });
  const auto count = static_cast<int64_t>(sorted.size());
  const auto required = static_cast<int64_t>(
      std::count_if(sorted.begin(), sorted.end(), [](const auto& one) { return one.required; }));
  // Members of several groups are not counted together: a bound is met in the first one alone.
  const bool at_most = members.max_total >= 0 && members.max_total < count;
  const bool at_least = members.min_total > std::max<int64_t>(required, 1);
  const auto group_size = static_cast<int64_t>(kMaxAnyOrder);
  if (at_most || at_least) {
    if (required > group_size) return std::nullopt;
    GrammarBuilder::Members first = members;
    first.members.assign(sorted.begin(), sorted.begin() + group_size);
    return builder_.AnyOrder(first);
  }
  std::vector<Expr> groups;
  for (int64_t begin = 0; begin < count; begin += group_size) {
    GrammarBuilder::Members group = members;
    group.members.assign(sorted.begin() + begin,
                         sorted.begin() + std::min(begin + group_size, count));
    group.min_total = 1;
    const GrammarBuilder::Rule rule = builder_.DeclareRule("members");
    builder_.DefineRule(rule, builder_.AnyOrder(group));
    groups.push_back(builder_.Call(rule));
  }
  std::vector<Expr> ways;
  for (size_t start = 0; start < groups.size(); ++start) {
    std::vector<Expr> parts = {groups[start]};
    for (size_t i = start + 1; i < groups.size(); ++i) {
      const Expr next[] = {members.separator, groups[i]};
      const Expr more = builder_.Sequence(next);
      const bool must = static_cast<int64_t>(i) * group_size < required;
      parts.push_back(must ? more : builder_.Optional(more));
    }
    ways.push_back(builder_.Sequence(parts));
    if (static_cast<int64_t>(start) * group_size < required) break;  // it cannot be passed over
  }
  return builder_.Choice(ways);
}

}  // namespace baltoro
