#include "text/jinja_expression_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "text/jinja_builtins.h"

namespace baltoro::jinja {

bool ExpressionParser::SkipOp(std::string_view op) {
  if (!IsOp(op)) return false;
  Skip();
  return true;
}

bool ExpressionParser::SkipName(std::string_view name) {
  if (!IsName(name)) return false;
  Skip();
  return true;
}

Status ExpressionParser::Error(std::string_view what) const {
  return InvalidArgument(fmt::format("line {}: {}", Now().line, what));
}

Status ExpressionParser::Unexpected(std::string_view wanted) const {
  std::string found = "'" + Now().text + "'";
  if (Now().kind == TokenKind::kEnd) found = "the end of the template";
  if (Now().kind == TokenKind::kBlockEnd || Now().kind == TokenKind::kOutputEnd) {
    found = "the end of the tag";
  }
  return Error(fmt::format("expected {}, found {}", wanted, found));
}

Status ExpressionParser::ExpectOp(std::string_view op) {
  if (SkipOp(op)) return {};
  return Unexpected(fmt::format("'{}'", op));
}

Result<std::string> ExpressionParser::ExpectName() {
  if (Now().kind != TokenKind::kName) return Unexpected("a name");
  std::string name = Now().text;
  Skip();
  return name;
}

int ExpressionParser::Symbol(const std::string& name) {
  return symbols_.try_emplace(name, static_cast<int>(symbols_.size())).first->second;
}

// Filters and tests may be called a.b; we have none such, but where it ends matters.
Result<std::string> ExpressionParser::ExpectDottedName() {
  BT_ASSIGN_OR_RETURN(std::string name, ExpectName());
  while (SkipOp(".")) {
    BT_ASSIGN_OR_RETURN(const std::string part, ExpectName());
    name += "." + part;
  }
  return name;
}

ExprPtr ExpressionParser::New(ExprKind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = Now().line;
  return expr;
}

// Every node passes here once its kids are known.
Result<ExprPtr> ExpressionParser::Done(ExprPtr expr) const {
  for (const ExprPtr& kid : expr->kids) {
    if (kid) expr->depth = std::max(expr->depth, kid->depth + 1);
  }
  if (expr->depth > kDepthMax) return Error("expression nested too deeply");
  return expr;
}

Result<ExprPtr> ExpressionParser::ParseChoice() {
  const Nested nested(nesting_);
  if (nested.too_deep()) return Error("expression nested too deeply");
  BT_ASSIGN_OR_RETURN(ExprPtr expr, ParseOr());
  while (IsName("if")) {
    ExprPtr choice = New(ExprKind::kChoice);
    Skip();
    BT_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr other;
    if (SkipName("else")) {
      BT_ASSIGN_OR_RETURN(other, ParseChoice());
    }
    choice->kids.push_back(std::move(expr));
    choice->kids.push_back(std::move(condition));
    choice->kids.push_back(std::move(other));
    BT_ASSIGN_OR_RETURN(expr, Done(std::move(choice)));
  }
  return expr;
}

Result<ExprPtr> ExpressionParser::Pair(ExprKind kind, Op op, ExprPtr left, ExprPtr right) {
  ExprPtr expr = New(kind);
  expr->ops.push_back(op);
  expr->kids.push_back(std::move(left));
  expr->kids.push_back(std::move(right));
  return Done(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseOr() {
  BT_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  while (SkipName("or")) {
    BT_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kOr, Op::kAdd, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseAnd() {
  BT_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  while (SkipName("and")) {
    BT_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kAnd, Op::kAdd, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseNot() {
  if (!IsName("not")) return ParseCompare();
  const Nested nested(nesting_);
  if (nested.too_deep()) return Error("expression nested too deeply");
  ExprPtr expr = New(ExprKind::kNot);
  Skip();
  BT_ASSIGN_OR_RETURN(ExprPtr kid, ParseNot());
  expr->kids.push_back(std::move(kid));
  return Done(std::move(expr));
}

bool ExpressionParser::TakeCompareOp(Op& op) {
  static constexpr std::pair<std::string_view, Op> kOps[] = {{"==", Op::kEq}, {"!=", Op::kNe},
                                                             {"<=", Op::kLe}, {"<", Op::kLt},
                                                             {">=", Op::kGe}, {">", Op::kGt}};
  for (const auto& [text, candidate] : kOps) {
    if (!SkipOp(text)) continue;
    op = candidate;
    return true;
  }
  if (SkipName("in")) {
    op = Op::kIn;
    return true;
  }
  if (IsName("not") && After().kind == TokenKind::kName && After().text == "in") {
    Skip();
    Skip();
    op = Op::kNotIn;
    return true;
  }
  return false;
}

Result<ExprPtr> ExpressionParser::ParseCompare() {
  BT_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  Op op{};
  if (!TakeCompareOp(op)) return first;
  ExprPtr expr = New(ExprKind::kCompare);
  expr->kids.push_back(std::move(first));
  do {
    BT_ASSIGN_OR_RETURN(ExprPtr next, ParseSum());
    expr->ops.push_back(op);
    expr->kids.push_back(std::move(next));
  } while (TakeCompareOp(op));
  return Done(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseSum() {
  BT_ASSIGN_OR_RETURN(ExprPtr left, ParseConcat());
  while (IsOp("+") || IsOp("-")) {
    const Op op = IsOp("+") ? Op::kAdd : Op::kSub;
    Skip();
    BT_ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
    BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kBinary, op, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseConcat() {
  BT_ASSIGN_OR_RETURN(ExprPtr first, ParseProduct());
  if (!IsOp("~")) return first;
  ExprPtr expr = New(ExprKind::kConcat);
  expr->kids.push_back(std::move(first));
  while (SkipOp("~")) {
    BT_ASSIGN_OR_RETURN(ExprPtr next, ParseProduct());
    expr->kids.push_back(std::move(next));
  }
  return Done(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseProduct() {
  static constexpr std::pair<std::string_view, Op> kOps[] = {
      {"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}};
  BT_ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
  for (;;) {
    const auto* found =
        std::find_if(std::begin(kOps), std::end(kOps), [&](auto& op) { return IsOp(op.first); });
    if (found == std::end(kOps)) return left;
    Skip();
    BT_ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
    BT_ASSIGN_OR_RETURN(left,
                        Pair(ExprKind::kBinary, found->second, std::move(left), std::move(right)));
  }
}

Result<ExprPtr> ExpressionParser::ParsePower() {
  BT_ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(true));
  while (SkipOp("**")) {
    BT_ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
    BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kBinary, Op::kPow, std::move(left), std::move(right)));
  }
  return left;
}

Result<ExprPtr> ExpressionParser::ParseUnary(bool with_filters) {
  const Nested nested(nesting_);
  if (nested.too_deep()) return Error("expression nested too deeply");
  ExprPtr expr;
  if (IsOp("-") || IsOp("+")) {
    expr = New(IsOp("-") ? ExprKind::kNegate : ExprKind::kPlus);
    Skip();
    BT_ASSIGN_OR_RETURN(ExprPtr kid, ParseUnary(false));
    expr->kids.push_back(std::move(kid));
    BT_ASSIGN_OR_RETURN(expr, Done(std::move(expr)));
  } else {
    BT_ASSIGN_OR_RETURN(expr, ParsePrimary());
  }
  BT_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
  return with_filters ? ParseFilters(std::move(expr)) : Result<ExprPtr>(std::move(expr));
}

Result<ExprPtr> ExpressionParser::Literal(Value value) {
  ExprPtr expr = New(ExprKind::kLiteral);
  expr->literal = value;
  return expr;
}

Result<ExprPtr> ExpressionParser::ParsePrimary() {
  const std::string text = Now().text;
  switch (Now().kind) {
    case TokenKind::kName: {
      ExprPtr expr = New(ExprKind::kLiteral);
      Skip();
      if (text == "true" || text == "True") {
        expr->literal = Value::Bool(true);
      } else if (text == "false" || text == "False") {
        expr->literal = Value::Bool(false);
      } else if (text == "none" || text == "None") {
        expr->literal = Value::None();
      } else {
        expr->kind = ExprKind::kName;
        expr->symbol = Symbol(text);
      }
      return expr;
    }
    case TokenKind::kString: {
      ExprPtr expr = New(ExprKind::kLiteral);
      std::string whole;
      while (Now().kind == TokenKind::kString) {  // neighbours are one string
        whole += Now().text;
        Skip();
      }
      expr->text = Text(std::move(whole), /*trusted=*/true);
      expr->literal = Value::String(&expr->text);
      return expr;
    }
    case TokenKind::kInteger:
    case TokenKind::kFloat:
      return ParseNumber(text);
    default:
      break;
  }
  if (SkipOp("(")) {
    BT_ASSIGN_OR_RETURN(ExprPtr expr, ParseTuple(/*may_be_empty=*/true));
    BT_RETURN_IF_ERROR(ExpectOp(")"));
    return expr;
  }
  if (IsOp("[")) return ParseList();
  if (IsOp("{")) return ParseDict();
  return Unexpected("an expression");
}

Result<ExprPtr> ExpressionParser::ParseNumber(const std::string& text) {
  const char* end = text.data() + text.size();
  Value value;
  std::from_chars_result read{};
  if (Now().kind == TokenKind::kInteger) {
    int64_t number = 0;
    read = std::from_chars(text.data(), end, number);
    value = Value::Int(number);
  } else {
    double number = 0;
    read = std::from_chars(text.data(), end, number);
    value = Value::Float(number);
  }
  if (read.ec != std::errc() || read.ptr != end) return Error("number out of range");
  auto expr = Literal(value);
  Skip();
  return expr;
}

Result<ExprPtr> ExpressionParser::ParseList() {
  ExprPtr expr = New(ExprKind::kList);
  Skip();
  while (!IsOp("]")) {
    if (!expr->kids.empty()) {
      BT_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp("]")) break;
    }
    BT_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    expr->kids.push_back(std::move(item));
  }
  Skip();
  return Done(std::move(expr));
}

Result<ExprPtr> ExpressionParser::ParseDict() {
  ExprPtr expr = New(ExprKind::kDict);
  Skip();
  while (!IsOp("}")) {
    if (!expr->kids.empty()) {
      BT_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp("}")) break;
    }
    BT_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    BT_RETURN_IF_ERROR(ExpectOp(":"));
    BT_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    expr->kids.push_back(std::move(key));
    expr->kids.push_back(std::move(value));
  }
  Skip();
  return Done(std::move(expr));
}

bool ExpressionParser::AtTupleEnd() const {
  return Now().kind == TokenKind::kBlockEnd || Now().kind == TokenKind::kOutputEnd || IsOp(")");
}

Result<ExprPtr> ExpressionParser::ParseTuple(bool may_be_empty, bool plain) {
  ExprPtr tuple = New(ExprKind::kTuple);
  bool comma = false;
  while (!AtTupleEnd() && !(plain && IsName("recursive"))) {
    BT_ASSIGN_OR_RETURN(ExprPtr item, plain ? ParseOr() : ParseExpression());
    tuple->kids.push_back(std::move(item));
    if (!SkipOp(",")) {
      if (!comma) return std::move(tuple->kids[0]);
      break;
    }
    comma = true;
  }
  if (tuple->kids.empty() && !may_be_empty) return Unexpected("an expression");
  return Done(std::move(tuple));
}

Result<ExprPtr> ExpressionParser::ParsePostfix(ExprPtr expr) {
  for (;;) {
    if (IsOp(".")) {
      Skip();
      ExprPtr get = New(ExprKind::kAttribute);
      get->kids.push_back(std::move(expr));
      if (Now().kind == TokenKind::kInteger) {
        BT_ASSIGN_OR_RETURN(ExprPtr index, ParseNumber(std::string(Now().text)));
        get->kind = ExprKind::kItem;
        get->kids.push_back(std::move(index));
      } else {
        BT_ASSIGN_OR_RETURN(get->name, ExpectName());
      }
      BT_ASSIGN_OR_RETURN(expr, Done(std::move(get)));
    } else if (IsOp("[")) {
      BT_ASSIGN_OR_RETURN(expr, ParseSubscript(std::move(expr)));
    } else if (IsOp("(")) {
      ExprPtr call = New(ExprKind::kCall);
      call->kids.push_back(std::move(expr));
      BT_RETURN_IF_ERROR(ParseArguments(*call));
      BT_ASSIGN_OR_RETURN(expr, Done(std::move(call)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseSubscript(ExprPtr object) {
  ExprPtr get = New(ExprKind::kItem);
  Skip();
  get->kids.push_back(std::move(object));
  bool slice = false;
  ExprPtr bound;
  if (!IsOp(":")) {
    BT_ASSIGN_OR_RETURN(bound, ParseExpression());
  }
  get->kids.push_back(std::move(bound));
  while (get->kids.size() < 4 && SkipOp(":")) {
    slice = true;
    bound = nullptr;
    if (!IsOp(":") && !IsOp("]")) {
      BT_ASSIGN_OR_RETURN(bound, ParseExpression());
    }
    get->kids.push_back(std::move(bound));
  }
  if (slice) {
    get->kind = ExprKind::kSlice;
    get->kids.resize(4);
  }
  BT_RETURN_IF_ERROR(ExpectOp("]"));
  return Done(std::move(get));
}

Status ExpressionParser::ParseArguments(Expr& call) {
  Skip();
  for (bool first = true; !IsOp(")"); first = false) {
    if (!first) {
      BT_RETURN_IF_ERROR(ExpectOp(","));
      if (IsOp(")")) break;
    }
    if (IsOp("*") || IsOp("**")) return Error("star arguments are not supported");
    const bool named = Now().kind == TokenKind::kName && After().kind == TokenKind::kOperator &&
                       After().text == "=";
    if (named) {
      if (std::find(call.keywords.begin(), call.keywords.end(), Now().text) !=
          call.keywords.end()) {
        return Error(fmt::format("'{}' given twice", Now().text));
      }
      call.keywords.push_back(Now().text);
      Skip();
      Skip();
    } else if (!call.keywords.empty()) {
      return Error("a plain argument after a named one");
    }
    BT_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    call.kids.push_back(std::move(value));
  }
  Skip();
  return {};
}

Result<ExprPtr> ExpressionParser::ParseFilters(ExprPtr expr) {
  for (;;) {
    if (SkipOp("|")) {
      BT_ASSIGN_OR_RETURN(expr, ParseFilter(std::move(expr)));
    } else if (IsName("is")) {
      BT_ASSIGN_OR_RETURN(expr, ParseTest(std::move(expr)));
    } else if (IsOp("(")) {
      BT_ASSIGN_OR_RETURN(expr, ParsePostfix(std::move(expr)));
    } else {
      return expr;
    }
  }
}

Result<ExprPtr> ExpressionParser::ParseFilter(ExprPtr expr) {
  ExprPtr filter = New(ExprKind::kFilter);
  BT_ASSIGN_OR_RETURN(filter->name, ExpectDottedName());
  filter->builtin = FindFilter(filter->name);
  if (filter->builtin == nullptr && branches_ == 0) {
    return Error(fmt::format("no filter '{}'", filter->name));
  }
  filter->kids.push_back(std::move(expr));
  if (IsOp("(")) BT_RETURN_IF_ERROR(ParseArguments(*filter));
  return Done(std::move(filter));
}

Result<ExprPtr> ExpressionParser::ParseTest(ExprPtr expr) {
  ExprPtr test = New(ExprKind::kTest);
  Skip();
  const bool negated = SkipName("not");
  BT_ASSIGN_OR_RETURN(test->name, ExpectDottedName());
  test->builtin = FindTest(test->name);
  if (test->builtin == nullptr && branches_ == 0) {
    return Error(fmt::format("no test '{}'", test->name));
  }
  test->kids.push_back(std::move(expr));
  const TokenKind kind = Now().kind;
  if (IsOp("(")) {
    BT_RETURN_IF_ERROR(ParseArguments(*test));
  } else if (kind == TokenKind::kString || kind == TokenKind::kInteger ||
             kind == TokenKind::kFloat || IsOp("[") || IsOp("{") ||
             (kind == TokenKind::kName && !IsName("else") && !IsName("or") && !IsName("and"))) {
    if (IsName("is")) return Error("tests cannot be chained with 'is'");
    BT_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    BT_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->kids.push_back(std::move(argument));
  }
  BT_ASSIGN_OR_RETURN(test, Done(std::move(test)));
  if (!negated) return test;
  ExprPtr no = New(ExprKind::kNot);
  no->kids.push_back(std::move(test));
  return Done(std::move(no));
}

}  // namespace baltoro::jinja
