#pragma once

// From the nodes of schemas to expressions.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "grammar/json_schema_expand.h"
#include "grammar/json_schema_object.h"
#include "grammar/json_text.h"

namespace baltoro {

class SchemaEmitter {
 public:
  using Expr = GrammarBuilder::Expr;

  SchemaEmitter(SchemaContext& context, JsonText& text)
      : context_(context), expander_(context), text_(text), builder_(text.builder()) {}

  // Any value that satisfies all of the schemas; nothing if there is none that can be seen here.
  Result<std::optional<Expr>> Value(const SchemaSet& schemas);

 private:
  using MaybeExpr = std::optional<Expr>;

  Result<MaybeExpr> ValueOfNodes(const std::vector<SchemaNode>& nodes);
  Status AddNode(const SchemaNode& node, std::vector<Expr>& ways);

  Result<MaybeExpr> Number(const SchemaNode& node);
  Result<MaybeExpr> String(const SchemaNode& node);
  // What stands between the quotes, in the one spelling of each character; also keys.
  Result<MaybeExpr> PlainText(const SchemaNode& node);
  struct TextRules;
  Result<TextRules> CollectTextRules(const SchemaNode& node);
  Expr MatchRules(const SchemaNode& node, const TextRules& rules);

  Result<MaybeExpr> Array(const SchemaNode& node);
  struct ArrayRules;
  Result<ArrayRules> MakeArrayRules(const SchemaNode& node);
  Result<MaybeExpr> ContainingArray(const SchemaNode& node, const ArrayRules& rules);
  Result<MaybeExpr> UniqueArray(const SchemaNode& node, const ArrayRules& rules);
  Expr ArrayOf(const std::vector<Expr>& first, MaybeExpr rest, int64_t min, int64_t max);

  Result<MaybeExpr> Object(const SchemaNode& node);
  Status AddKeys(const ObjectRules& rules, GrammarBuilder::Members& members, bool& possible);
  Status AddExtras(const SchemaNode& node,
                   const ObjectRules& rules,
                   GrammarBuilder::Members& members);
  Result<MaybeExpr> ExtraKey(const ObjectRules& rules,
                             const std::vector<const ObjectRules::Pattern*>& matched);
  MaybeExpr ObjectOf(const GrammarBuilder::Members& members);
  MaybeExpr InGroups(const GrammarBuilder::Members& members);

  SchemaContext& context_;
  SchemaExpander expander_;
  JsonText& text_;
  GrammarBuilder& builder_;
  std::map<SchemaSet, MaybeExpr> made_;
  int depth_ = 0;
};

}  // namespace baltoro
