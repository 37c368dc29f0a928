#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <unordered_map>

#include "text/jinja_builtins.h"
#include "text/jinja_lexer.h"

namespace baltoro::jinja {
namespace {

constexpr size_t kSourceMax = size_t{1} << 20;
constexpr int kDepthMax = 200;

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<Template> Run() {
    std::string_view end;
    BT_ASSIGN_OR_RETURN(template_.body, ParseBody({}, end));
    template_.symbols.resize(symbols_.size());
    for (const auto& [name, index] : symbols_) template_.symbols[index] = name;
    return std::move(template_);
  }

 private:
  // --- tokens ---

  const Token& Now() const { return tokens_[at_]; }
  const Token& After() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  void Skip() {
    if (at_ + 1 < tokens_.size()) ++at_;
  }
  bool IsOp(std::string_view op) const {
    return Now().kind == TokenKind::kOperator && Now().text == op;
  }
  bool IsName(std::string_view name) const {
    return Now().kind == TokenKind::kName && Now().text == name;
  }
  bool SkipOp(std::string_view op) {
    if (!IsOp(op)) return false;
    Skip();
    return true;
  }
  bool SkipName(std::string_view name) {
    if (!IsName(name)) return false;
    Skip();
    return true;
  }

  Status Error(std::string_view what) const {
    return InvalidArgument(fmt::format("line {}: {}", Now().line, what));
  }
  Status Unexpected(std::string_view wanted) const {
    std::string found = "'" + Now().text + "'";
    if (Now().kind == TokenKind::kEnd) found = "the end of the template";
    if (Now().kind == TokenKind::kBlockEnd || Now().kind == TokenKind::kOutputEnd) {
      found = "the end of the tag";
    }
    return Error(fmt::format("expected {}, found {}", wanted, found));
  }
  Status ExpectOp(std::string_view op) {
    if (SkipOp(op)) return {};
    return Unexpected(fmt::format("'{}'", op));
  }
  Status ExpectBlockEnd() {
    SkipOp(":");
    if (Now().kind != TokenKind::kBlockEnd) return Unexpected("the end of the tag");
    Skip();
    return {};
  }
  Result<std::string> ExpectName() {
    if (Now().kind != TokenKind::kName) return Unexpected("a name");
    std::string name = Now().text;
    Skip();
    return name;
  }

  int Symbol(const std::string& name) {
    return symbols_.try_emplace(name, static_cast<int>(symbols_.size())).first->second;
  }

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

  // --- expressions ---

  ExprPtr New(ExprKind kind) const {
    auto expr = std::make_unique<Expr>();
    expr->kind = kind;
    expr->line = Now().line;
    return expr;
  }

  // Every node passes here once its kids are known.
  Result<ExprPtr> Done(ExprPtr expr) const {
    for (const ExprPtr& kid : expr->kids) {
      if (kid) expr->depth = std::max(expr->depth, kid->depth + 1);
    }
    if (expr->depth > kDepthMax) return Error("expression nested too deeply");
    return expr;
  }

  Result<ExprPtr> ParseExpression() { return ParseChoice(); }

  Result<ExprPtr> ParseChoice() {
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

  Result<ExprPtr> Pair(ExprKind kind, Op op, ExprPtr left, ExprPtr right) {
    ExprPtr expr = New(kind);
    expr->ops.push_back(op);
    expr->kids.push_back(std::move(left));
    expr->kids.push_back(std::move(right));
    return Done(std::move(expr));
  }

  Result<ExprPtr> ParseOr() {
    BT_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
    while (SkipName("or")) {
      BT_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
      BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kOr, Op::kAdd, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<ExprPtr> ParseAnd() {
    BT_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
    while (SkipName("and")) {
      BT_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
      BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kAnd, Op::kAdd, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<ExprPtr> ParseNot() {
    if (!IsName("not")) return ParseCompare();
    const Nested nested(nesting_);
    if (nested.too_deep()) return Error("expression nested too deeply");
    ExprPtr expr = New(ExprKind::kNot);
    Skip();
    BT_ASSIGN_OR_RETURN(ExprPtr kid, ParseNot());
    expr->kids.push_back(std::move(kid));
    return Done(std::move(expr));
  }

  bool TakeCompareOp(Op& op) {
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

  Result<ExprPtr> ParseCompare() {
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

  Result<ExprPtr> ParseSum() {
    BT_ASSIGN_OR_RETURN(ExprPtr left, ParseConcat());
    while (IsOp("+") || IsOp("-")) {
      const Op op = IsOp("+") ? Op::kAdd : Op::kSub;
      Skip();
      BT_ASSIGN_OR_RETURN(ExprPtr right, ParseConcat());
      BT_ASSIGN_OR_RETURN(left, Pair(ExprKind::kBinary, op, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<ExprPtr> ParseConcat() {
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

  Result<ExprPtr> ParseProduct() {
    static constexpr std::pair<std::string_view, Op> kOps[] = {
        {"*", Op::kMul}, {"/", Op::kDiv}, {"//", Op::kFloorDiv}, {"%", Op::kMod}};
    BT_ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
    for (;;) {
      const auto* found =
          std::find_if(std::begin(kOps), std::end(kOps), [&](auto& op) { return IsOp(op.first); });
      if (found == std::end(kOps)) return left;
      Skip();
      BT_ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
      BT_ASSIGN_OR_RETURN(
          left, Pair(ExprKind::kBinary, found->second, std::move(left), std::move(right)));
    }
  }

  Result<ExprPtr> ParsePower() {
    BT_ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(true));
    while (SkipOp("**")) {
      BT_ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(true));
      BT_ASSIGN_OR_RETURN(left,
                          Pair(ExprKind::kBinary, Op::kPow, std::move(left), std::move(right)));
    }
    return left;
  }

  Result<ExprPtr> ParseUnary(bool with_filters) {
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

  Result<ExprPtr> Literal(Value value) {
    ExprPtr expr = New(ExprKind::kLiteral);
    expr->literal = value;
    return expr;
  }

  Result<ExprPtr> ParsePrimary() {
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

  Result<ExprPtr> ParseNumber(const std::string& text) {
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

  Result<ExprPtr> ParseList() {
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

  Result<ExprPtr> ParseDict() {
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

  bool AtTupleEnd() const {
    return Now().kind == TokenKind::kBlockEnd || Now().kind == TokenKind::kOutputEnd || IsOp(")");
  }

  // One expression, or several with commas between them, which make a tuple. `plain` forbids the
  // inline if, whose word would be taken from the statement around.
  Result<ExprPtr> ParseTuple(bool may_be_empty, bool plain = false) {
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

  Result<ExprPtr> ParsePostfix(ExprPtr expr) {
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

  Result<ExprPtr> ParseSubscript(ExprPtr object) {
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

  Status ParseArguments(Expr& call) {
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

  Result<ExprPtr> ParseFilters(ExprPtr expr) {
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

  Result<ExprPtr> ParseFilter(ExprPtr expr) {
    ExprPtr filter = New(ExprKind::kFilter);
    BT_ASSIGN_OR_RETURN(filter->name, ExpectName());
    filter->builtin = FindFilter(filter->name);
    if (filter->builtin == nullptr) return Error(fmt::format("no filter '{}'", filter->name));
    filter->kids.push_back(std::move(expr));
    if (IsOp("(")) BT_RETURN_IF_ERROR(ParseArguments(*filter));
    return Done(std::move(filter));
  }

  Result<ExprPtr> ParseTest(ExprPtr expr) {
    ExprPtr test = New(ExprKind::kTest);
    Skip();
    const bool negated = SkipName("not");
    BT_ASSIGN_OR_RETURN(test->name, ExpectName());
    test->builtin = FindTest(test->name);
    if (test->builtin == nullptr) return Error(fmt::format("no test '{}'", test->name));
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

  // --- statements ---

  // Statements up to a block tag whose first word is in `ends`; the tag is left after that word.
  Result<Body> ParseBody(std::initializer_list<std::string_view> ends, std::string_view& end) {
    const Nested nested(nesting_);
    if (nested.too_deep()) return Error("blocks nested too deeply");
    Body body;
    for (;;) {
      const Token& token = Now();
      if (token.kind == TokenKind::kEnd) {
        if (ends.size() == 0) return body;
        return Unexpected(fmt::format("'{}'", *(ends.end() - 1)));
      }
      if (token.kind == TokenKind::kData) {
        Stmt& stmt = NewStmt(body, StmtKind::kText);
        stmt.text = token.text;
        Skip();
      } else if (token.kind == TokenKind::kOutputBegin) {
        Stmt& stmt = NewStmt(body, StmtKind::kOutput);
        Skip();
        BT_ASSIGN_OR_RETURN(ExprPtr value, ParseTuple(false));
        stmt.exprs.push_back(std::move(value));
        if (Now().kind != TokenKind::kOutputEnd) return Unexpected("the end of the tag");
        Skip();
      } else if (token.kind == TokenKind::kBlockBegin) {
        Skip();
        if (Now().kind != TokenKind::kName) return Unexpected("a statement");
        for (const std::string_view candidate : ends) {
          if (!IsName(candidate)) continue;
          end = candidate;
          Skip();
          return body;
        }
        BT_RETURN_IF_ERROR(ParseStatement(body));
      } else {
        return Unexpected("text or a tag");
      }
    }
  }

  Stmt& NewStmt(Body& body, StmtKind kind) const {
    Stmt& stmt = body.emplace_back();
    stmt.kind = kind;
    stmt.line = Now().line;
    return stmt;
  }

  Status ParseStatement(Body& body) {
    const std::string word = Now().text;
    if (word == "generation") return ParseGeneration(body);
    struct Statement {
      std::string_view word;
      StmtKind kind;
      Status (Parser::*parse)(Stmt&);
    };
    static constexpr Statement kStatements[] = {
        {"if", StmtKind::kIf, &Parser::ParseIf},
        {"for", StmtKind::kFor, &Parser::ParseFor},
        {"set", StmtKind::kSet, &Parser::ParseSet},
        {"macro", StmtKind::kMacro, &Parser::ParseMacro},
        {"with", StmtKind::kWith, &Parser::ParseWith},
        {"filter", StmtKind::kFilter, &Parser::ParseFilterBlock},
        {"break", StmtKind::kBreak, &Parser::ParseJump},
        {"continue", StmtKind::kContinue, &Parser::ParseJump},
    };
    for (const Statement& known : kStatements) {
      if (word != known.word) continue;
      Stmt& stmt = NewStmt(body, known.kind);
      Skip();
      return (this->*known.parse)(stmt);
    }
    return Error(fmt::format("statement '{}' is not supported", word));
  }

  Status ParseIf(Stmt& stmt) {
    for (;;) {
      BT_ASSIGN_OR_RETURN(ExprPtr condition, ParseTuple(false));
      stmt.exprs.push_back(std::move(condition));
      BT_RETURN_IF_ERROR(ExpectBlockEnd());
      std::string_view end;
      BT_ASSIGN_OR_RETURN(Body body, ParseBody({"elif", "else", "endif"}, end));
      stmt.bodies.push_back(std::move(body));
      if (end == "elif") continue;
      if (end == "else") {
        BT_RETURN_IF_ERROR(ExpectBlockEnd());
        BT_ASSIGN_OR_RETURN(Body other, ParseBody({"endif"}, end));
        stmt.bodies.push_back(std::move(other));
      }
      return ExpectBlockEnd();
    }
  }

  Status ParseFor(Stmt& stmt) {
    BT_ASSIGN_OR_RETURN(stmt.target, ParseTargets());
    if (!SkipName("in")) return Unexpected("'in'");
    BT_ASSIGN_OR_RETURN(ExprPtr items, ParseTuple(false, /*plain=*/true));
    stmt.exprs.push_back(std::move(items));
    ExprPtr condition;
    if (SkipName("if")) {
      BT_ASSIGN_OR_RETURN(condition, ParseExpression());
    }
    stmt.exprs.push_back(std::move(condition));
    if (IsName("recursive")) return Error("recursive loops are not supported");
    BT_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string_view end;
    ++loops_;
    BT_ASSIGN_OR_RETURN(Body body, ParseBody({"else", "endfor"}, end));
    --loops_;
    stmt.bodies.push_back(std::move(body));
    if (end == "else") {
      BT_RETURN_IF_ERROR(ExpectBlockEnd());
      BT_ASSIGN_OR_RETURN(Body other, ParseBody({"endfor"}, end));
      stmt.bodies.push_back(std::move(other));
    }
    return ExpectBlockEnd();
  }

  Result<Target> ParseTarget() {
    const Nested nested(nesting_);
    if (nested.too_deep()) return Error("names nested too deeply");
    Target target;
    if (SkipOp("(")) {
      BT_ASSIGN_OR_RETURN(target, ParseTargets());
      BT_RETURN_IF_ERROR(ExpectOp(")"));
      return target;
    }
    BT_ASSIGN_OR_RETURN(const std::string name, ExpectName());
    static constexpr std::string_view kReserved[] = {"true", "false", "none",
                                                     "True", "False", "None"};
    for (const std::string_view reserved : kReserved) {
      if (name == reserved) return Error(fmt::format("cannot assign to '{}'", name));
    }
    target.symbol = Symbol(name);
    return target;
  }

  Result<Target> ParseTargets() {
    BT_ASSIGN_OR_RETURN(Target first, ParseTarget());
    if (!IsOp(",")) return first;
    Target all;
    all.parts.push_back(std::move(first));
    while (SkipOp(",")) {
      if (Now().kind != TokenKind::kName && !IsOp("(")) break;
      if (IsName("in")) break;
      BT_ASSIGN_OR_RETURN(Target next, ParseTarget());
      all.parts.push_back(std::move(next));
    }
    return all;
  }

  Status ParseSet(Stmt& stmt) {
    if (After().kind == TokenKind::kOperator && After().text == ".") {
      BT_ASSIGN_OR_RETURN(stmt.target, ParseTarget());
      Skip();
      BT_ASSIGN_OR_RETURN(stmt.target.attribute, ExpectName());
    } else {
      BT_ASSIGN_OR_RETURN(stmt.target, ParseTargets());
    }
    if (SkipOp("=")) {
      BT_ASSIGN_OR_RETURN(ExprPtr value, ParseTuple(false));
      stmt.exprs.push_back(std::move(value));
      return ExpectBlockEnd();
    }
    stmt.kind = StmtKind::kCapture;
    ExprPtr filters;
    while (SkipOp("|")) {
      BT_ASSIGN_OR_RETURN(filters, ParseFilter(std::move(filters)));
    }
    stmt.exprs.push_back(std::move(filters));
    return ParseBlockTo(stmt, "endset");
  }

  Status ParseBlockTo(Stmt& stmt, std::string_view word) {
    BT_RETURN_IF_ERROR(ExpectBlockEnd());
    std::string_view end;
    BT_ASSIGN_OR_RETURN(Body body, ParseBody({word}, end));
    stmt.bodies.push_back(std::move(body));
    return {ExpectBlockEnd()};
  }

  Status ParseMacro(Stmt& stmt) {
    BT_ASSIGN_OR_RETURN(stmt.name, ExpectName());
    stmt.target.symbol = Symbol(stmt.name);
    if (!IsOp("(")) return Unexpected("'('");
    Skip();
    for (bool first = true; !IsOp(")"); first = false) {
      if (!first) BT_RETURN_IF_ERROR(ExpectOp(","));
      BT_ASSIGN_OR_RETURN(const std::string parameter, ExpectName());
      ExprPtr value;
      if (SkipOp("=")) {
        BT_ASSIGN_OR_RETURN(value, ParseExpression());
      } else if (!stmt.exprs.empty() && stmt.exprs.back()) {
        return Error("a parameter without default after one with");
      }
      stmt.parameters.push_back(Symbol(parameter));
      stmt.exprs.push_back(std::move(value));
    }
    Skip();
    const int loops = std::exchange(loops_, 0);
    BT_RETURN_IF_ERROR(ParseBlockTo(stmt, "endmacro"));
    loops_ = loops;
    return {};
  }

  Status ParseWith(Stmt& stmt) {
    while (Now().kind == TokenKind::kName) {
      BT_ASSIGN_OR_RETURN(const std::string name, ExpectName());
      BT_RETURN_IF_ERROR(ExpectOp("="));
      BT_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      stmt.parameters.push_back(Symbol(name));
      stmt.exprs.push_back(std::move(value));
      if (!SkipOp(",")) break;
    }
    return ParseBlockTo(stmt, "endwith");
  }

  Status ParseFilterBlock(Stmt& stmt) {
    ExprPtr filters;
    do {
      BT_ASSIGN_OR_RETURN(filters, ParseFilter(std::move(filters)));
    } while (SkipOp("|"));
    stmt.exprs.push_back(std::move(filters));
    return ParseBlockTo(stmt, "endfilter");
  }

  // Marks what the model wrote, for training; to a server it is its body.
  Status ParseGeneration(Body& body) {
    Stmt& stmt = NewStmt(body, StmtKind::kWith);
    Skip();
    return ParseBlockTo(stmt, "endgeneration");
  }

  Status ParseJump(Stmt&) {
    if (loops_ == 0) return Error("outside of a loop");
    return ExpectBlockEnd();
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;
  Template template_;
  std::unordered_map<std::string, int> symbols_;
};

}  // namespace

int Template::FindSymbol(std::string_view name) const {
  const auto found = std::find(symbols.begin(), symbols.end(), name);
  return found == symbols.end() ? -1 : static_cast<int>(found - symbols.begin());
}

Result<Template> ParseTemplate(std::string_view source) {
  if (source.size() > kSourceMax) return InvalidArgument("the template is over 1 MiB");
  BT_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source));
  return Parser(std::move(tokens)).Run();
}

}  // namespace baltoro::jinja
