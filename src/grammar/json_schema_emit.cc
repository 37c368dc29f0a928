#include "grammar/json_schema_emit.h"

#include <algorithm>
#include <utility>

#include "grammar/json_schema_format.h"
#include "grammar/json_value_set.h"

namespace baltoro {
namespace {

constexpr int kMaxDepth = 256;
// Longest text made by multiplying automata; beyond, only shorter ones are written.
constexpr int64_t kMaxMultiplied = 512;
constexpr uint8_t kContainers = kJsonArray | kJsonObject;

}  // namespace

// NOLINTNEXTLINE(misc-no-recursion): the depth is bounded.
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::Value(const SchemaSet& schemas) {
  SchemaSet demands;
  for (const Json* schema : schemas) {
    const bool anything = *schema == true || (schema->is_object() && schema->empty());
    if (!anything) AddToSet(demands, schema);
  }
  if (demands.empty()) return MaybeExpr(text_.Value());
  const auto found = made_.find(demands);
  if (found != made_.end()) return found->second;
  BT_RETURN_IF_ERROR(context_.Spend(demands[0], 20));
  if (depth_ >= kMaxDepth) return context_.Failure(demands[0], "schemas nested this deep");

  BT_ASSIGN_OR_RETURN(const std::vector<SchemaNode> nodes, expander_.Expand(demands));
  const bool contains_others = std::any_of(nodes.begin(), nodes.end(), [](const SchemaNode& node) {
    const bool others =
        !node.parts.empty() || !node.contains.empty() || node.unevaluated != nullptr;
    return !node.values && (node.types & kContainers) != 0 && others;
  });
  ++depth_;
  MaybeExpr out;
  if (contains_others) {
    // Made before its body, which may come back to it.
    const GrammarBuilder::Rule rule = builder_.DeclareRule(context_.index.Path(demands[0]));
    made_[demands] = builder_.Call(rule);
    Result<MaybeExpr> body = ValueOfNodes(nodes);
    if (!body.ok()) return body.status();
    builder_.DefineRule(rule, body.value() ? *body.value() : builder_.Nothing());
    if (body.value()) out = made_[demands];
  } else {
    BT_ASSIGN_OR_RETURN(out, ValueOfNodes(nodes));
  }
  --depth_;
  made_[demands] = out;
  return out;
}

// NOLINTNEXTLINE(misc-no-recursion)
Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::ValueOfNodes(
    const std::vector<SchemaNode>& nodes) {
  std::vector<Expr> ways;
  JsonValueSet values;
  for (const SchemaNode& node : nodes) {
    if (!node.values) {
      BT_RETURN_IF_ERROR(AddNode(node, ways));
      continue;
    }
    for (const Json& value : *node.values) {
      BT_RETURN_IF_ERROR(context_.Charge(nullptr, 8));
      if (values.Add(value)) ways.push_back(text_.Constant(value));
    }
  }
  if (ways.empty()) return MaybeExpr();
  return MaybeExpr(builder_.Choice(ways));
}

// NOLINTNEXTLINE(misc-no-recursion)
Status SchemaEmitter::AddNode(const SchemaNode& node, std::vector<Expr>& ways) {
  const auto add = [&](const MaybeExpr& way) {
    if (way) ways.push_back(*way);
  };
  if ((node.types & kJsonNull) != 0) ways.push_back(text_.Null());
  if ((node.types & kJsonBoolean) != 0) {
    for (const bool value : {true, false}) {
      if (!ContainsEqual(node.excluded, value)) ways.push_back(text_.Constant(value));
    }
  }
  if ((node.types & (kJsonInteger | kJsonFraction)) != 0) {
    BT_ASSIGN_OR_RETURN(const MaybeExpr number, Number(node));
    add(number);
  }
  if ((node.types & kJsonString) != 0) {
    BT_ASSIGN_OR_RETURN(const MaybeExpr string, String(node));
    add(string);
  }
  if ((node.types & kJsonArray) != 0) {
    BT_ASSIGN_OR_RETURN(const MaybeExpr array, Array(node));
    add(array);
  }
  if ((node.types & kJsonObject) != 0) {
    BT_ASSIGN_OR_RETURN(const MaybeExpr object, Object(node));
    add(object);
  }
  return Status();
}

Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::Number(const SchemaNode& node) {
  NumberRules rules{.integers = (node.types & kJsonInteger) != 0,
                    .fractions = (node.types & kJsonFraction) != 0,
                    .lower = node.lower,
                    .upper = node.upper,
                    .multiples = {},
                    .excluded = {}};
  for (const Json& value : node.excluded) {
    if (value.is_number()) rules.excluded.push_back(Decimal::Of(value));
  }
  const bool free = !node.lower && !node.upper && node.multiples.empty() && rules.excluded.empty();
  if (free && rules.integers) {
    return MaybeExpr(rules.fractions ? text_.Number() : text_.Integer());
  }
  for (const auto& [schema, factor] : node.multiples) {
    NumberRules alone;
    alone.multiples = {factor};
    const Result<Expr> made = AddNumber(builder_, alone);
    if (made.ok()) {
      rules.multiples.push_back(factor);
    } else {
      BT_RETURN_IF_ERROR(context_.Unsupported(schema, "multipleOf", made.status().message()));
    }
  }
  BT_ASSIGN_OR_RETURN(const Expr out, AddNumber(builder_, rules));
  return MaybeExpr(out);
}

// Regular expressions that the text must match, and must not.
struct SchemaEmitter::TextRules {
  struct Rule {
    const Regex* regex = nullptr;
    std::string format{};  // that it is the pattern of
  };
  std::vector<Rule> all, none;
  std::vector<std::string> excluded;  // texts
};

Result<SchemaEmitter::TextRules> SchemaEmitter::CollectTextRules(const SchemaNode& node) {
  TextRules out;
  for (const SchemaNode::StringRule& rule : node.strings) {
    std::string pattern = rule.pattern, why;
    if (rule.is_format) {
      const auto format = FormatPattern(rule.pattern);
      if (!format) {
        BT_RETURN_IF_ERROR(context_.Unsupported(rule.schema, "format", "\"" + rule.pattern + "\""));
        continue;
      }
      pattern = *format;
    }
    const Regex* regex = context_.FindRegex(pattern, &why);
    if (regex == nullptr) {
      BT_RETURN_IF_ERROR(context_.Unsupported(rule.schema, rule.excluded ? "not" : "pattern", why));
      continue;
    }
    (rule.excluded ? out.none : out.all)
        .push_back({.regex = regex, .format = rule.is_format ? rule.pattern : std::string()});
  }
  for (const Json& value : node.excluded) {
    if (value.is_string()) out.excluded.push_back(value.get<std::string>());
  }
  return out;
}

SchemaEmitter::Expr SchemaEmitter::MatchRules(const SchemaNode& node, const TextRules& rules) {
  int64_t min = node.min_length, max = node.max_length;
  const auto lengths = [&] { return builder_.Repeat(text_.PlainCharacter(), min, max); };
  if (rules.all.empty()) return lengths();
  const bool bounded = min > 0 || max >= 0;
  const auto add = [&](const TextRules::Rule& rule) {
    if (const auto format = AddFormat(text_, rule.format)) return *format;
    return rule.regex->Add(builder_, {.anchored = !rule.format.empty(), .json_spelling = true});
  };
  if (rules.all.size() == 1 && bounded && !AddFormat(text_, rules.all[0].format)) {
    // Counting is cheap where it need not be multiplied with the states of an automaton.
    const TextRules::Rule& rule = rules.all[0];
    const RegexOptions options{.anchored = !rule.format.empty(), .json_spelling = true};
    if (const auto counted = rule.regex->AddOfLength(builder_, options, min, max)) return *counted;
  }
  if (max > kMaxMultiplied) max = std::max(min, kMaxMultiplied);
  std::optional<Expr> out;
  for (const TextRules::Rule& rule : rules.all) {
    const Expr one = add(rule);
    out = out ? builder_.And(*out, one) : one;
  }
  if (max >= 0) return builder_.OfLength(*out, text_.PlainCharacter(), min, max);
  return bounded ? builder_.And(*out, lengths()) : *out;
}

Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::PlainText(const SchemaNode& node) {
  if (node.values) {
    std::vector<Expr> ways;
    for (const Json& value : *node.values) {
      if (!value.is_string()) continue;
      ways.push_back(
          builder_.Literal(JsonText::PlainSpelling(value.get_ref<const std::string&>())));
    }
    return ways.empty() ? MaybeExpr() : MaybeExpr(builder_.Choice(ways));
  }
  BT_ASSIGN_OR_RETURN(const TextRules rules, CollectTextRules(node));
  Expr out = MatchRules(node, rules);
  for (const TextRules::Rule& rule : rules.none) {
    const RegexOptions options{
        .anchored = !rule.format.empty(), .json_spelling = true, .widest = true};
    out = builder_.And(out, builder_.Not(rule.regex->Add(builder_, options)));
  }
  if (!rules.excluded.empty()) {
    std::vector<Expr> texts;
    for (const std::string& text : rules.excluded) {
      texts.push_back(builder_.Literal(JsonText::PlainSpelling(text)));
    }
    out = builder_.And(out, builder_.Not(builder_.Choice(texts)));
  }
  return MaybeExpr(out);
}

Result<std::optional<SchemaEmitter::Expr>> SchemaEmitter::String(const SchemaNode& node) {
  const bool excludes = std::any_of(node.excluded.begin(), node.excluded.end(),
                                    [](const Json& one) { return one.is_string(); });
  BT_ASSIGN_OR_RETURN(const TextRules rules, CollectTextRules(node));
  if (rules.all.empty() && rules.none.empty() && !excludes) {
    if (node.min_length == 0 && node.max_length < 0) return MaybeExpr(text_.String());
    return MaybeExpr(text_.StringOfLength(node.min_length, node.max_length));
  }
  BT_ASSIGN_OR_RETURN(const MaybeExpr inside, PlainText(node));
  if (!inside) return MaybeExpr();
  const Expr quote = builder_.Literal("\"");
  const Expr parts[] = {quote, *inside, quote};
  return MaybeExpr(builder_.Sequence(parts));
}

}  // namespace baltoro
