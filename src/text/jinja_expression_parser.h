#pragma once

// The expressions of a template, from tokens. Statements (jinja_parser.cc) are parsed by a class
// derived from this one.

#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_lexer.h"

namespace baltoro::jinja {

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& Now() const { return tokens_[at_]; }
  const Token& After() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  void Skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsOp(std::string_view op) const {
    return Now().kind == TokenKind::kOperator && Now().text == op;
  }
  bool IsName(std::string_view name) const {
    return Now().kind == TokenKind::kName && Now().text == name;
  }
  bool SkipOp(std::string_view op);
  bool SkipName(std::string_view name);
  Status Error(std::string_view what) const;
  Status Unexpected(std::string_view wanted) const;
  Status ExpectOp(std::string_view op);
  Result<std::string> ExpectName();
  int Symbol(const std::string& name);

  // Recursion of the parser itself (brackets, nested blocks) is bounded like the tree it builds.
  class Nested {
   public:
    explicit Nested(int& depth) : depth_(++depth) {}
    ~Nested() { --depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    bool too_deep() const { return depth_ > kDepthMax; }

   private:
    int& depth_;
  };

  Result<ExprPtr> ParseExpression() { return ParseChoice(); }
  // One expression, or several with commas between them, which make a tuple. `plain` forbids the
  // inline if, whose word would be taken from the statement around.
  Result<ExprPtr> ParseTuple(bool may_be_empty, bool plain = false);
  // What follows a '|'; `expr` may be null (the filter of a block).
  Result<ExprPtr> ParseFilter(ExprPtr expr);

  static constexpr int kDepthMax = 200;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int branches_ = 0;  // if statements around: there an unknown filter fails only when it is reached
  std::unordered_map<std::string, int> symbols_;

 private:
  ExprPtr New(ExprKind kind) const;
  Result<ExprPtr> Done(ExprPtr expr) const;
  Result<ExprPtr> ParseChoice();
  Result<ExprPtr> Pair(ExprKind kind, Op op, ExprPtr left, ExprPtr right);
  Result<ExprPtr> ParseOr();
  Result<ExprPtr> ParseAnd();
  Result<ExprPtr> ParseNot();
  bool TakeCompareOp(Op& op);
  Result<ExprPtr> ParseCompare();
  Result<ExprPtr> ParseSum();
  Result<ExprPtr> ParseConcat();
  Result<ExprPtr> ParseProduct();
  Result<ExprPtr> ParsePower();
  Result<ExprPtr> ParseUnary(bool with_filters);
  Result<ExprPtr> Literal(Value value);
  Result<ExprPtr> ParsePrimary();
  Result<ExprPtr> ParseNumber(const std::string& text);
  Result<ExprPtr> ParseList();
  Result<ExprPtr> ParseDict();
  bool AtTupleEnd() const;
  Result<ExprPtr> ParsePostfix(ExprPtr expr);
  Result<ExprPtr> ParseSubscript(ExprPtr object);
  Status ParseArguments(Expr& call);
  Result<ExprPtr> ParseFilters(ExprPtr expr);
  Result<ExprPtr> ParseTest(ExprPtr expr);
  Result<std::string> ExpectDottedName();
};

}  // namespace baltoro::jinja
