#include "text/jinja_parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "text/jinja_expression_parser.h"
#include "text/jinja_lexer.h"

namespace baltoro::jinja {
namespace {

constexpr size_t kSourceMax = size_t{1} << 20;

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<Template> Run() {
    std::string_view end;
    BT_ASSIGN_OR_RETURN(template_.body, ParseBody({}, end));
    template_.symbols.resize(symbols_.size());
    for (const auto& [name, index] : symbols_) template_.symbols[index] = name;
    return std::move(template_);
  }

 private:
  Status ExpectBlockEnd() {
    SkipOp(":");
    if (Now().kind != TokenKind::kBlockEnd) return Unexpected("the end of the tag");
    Skip();
    return {};
  }

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
    const Nested branch(branches_);
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

  int loops_ = 0;
  Template template_;
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
