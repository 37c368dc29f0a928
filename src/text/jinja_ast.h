#pragma once

// The parsed template: expressions and statements, immutable after parsing.

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja_value.h"

namespace baltoro::jinja {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

enum class ExprKind {
  kLiteral,
  kName,
  kList,
  kTuple,
  kDict,       // kids: key, value, key, value ...
  kAttribute,  // kids[0].name
  kItem,       // kids[0][kids[1]]
  kSlice,      // kids[0][kids[1]:kids[2]:kids[3]], bounds may be null
  kCall,       // kids[0](arguments)
  kFilter,     // kids[0] | name(arguments)
  kTest,       // kids[0] is name(arguments)
  kNegate,
  kPlus,
  kNot,
  kAnd,
  kOr,
  kBinary,   // kids[0] op kids[1]
  kConcat,   // kids joined by ~
  kCompare,  // kids[0] ops[0] kids[1] ops[1] ...
  kChoice,   // kids[0] if kids[1] else kids[2] (may be null)
};

enum class Op {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kFloorDiv,
  kMod,
  kPow,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kIn,
  kNotIn
};

struct Expr {
  ExprKind kind = ExprKind::kLiteral;
  int line = 0;
  int depth = 1;              // of the tree below, bounded by the parser
  int symbol = -1;            // kName: index into Template::symbols
  std::string name;           // attribute, filter, test
  Builtin builtin = nullptr;  // kFilter, kTest
  Value literal;              // kLiteral; a string points at `text`
  Text text;
  std::vector<Op> ops;
  std::vector<ExprPtr> kids;
  std::vector<std::string> keywords;  // names of the last keywords.size() arguments
};

// Where a value is stored: a name, an attribute of a namespace, or several of these.
struct Target {
  int symbol = -1;
  std::string attribute;
  std::vector<Target> parts;
};

struct Stmt;
using Body = std::vector<Stmt>;

enum class StmtKind {
  kText,
  kOutput,   // exprs[0]
  kIf,       // exprs[i] guards bodies[i]; one more body is the else
  kFor,      // target in exprs[0] if exprs[1] (may be null); bodies[0], else bodies[1]
  kSet,      // target = exprs[0]
  kCapture,  // target = bodies[0], through the filter exprs[0] (may be null)
  kFilter,   // bodies[0] through the filter exprs[0]
  kWith,     // parameters[i] = exprs[i] in bodies[0]
  kMacro,    // target.symbol; parameters; exprs[i] default of parameter i or null; bodies[0]
  kBreak,
  kContinue,
};

struct Stmt {
  StmtKind kind = StmtKind::kText;
  int line = 0;
  std::string text;
  std::string name;  // of a macro
  Target target;
  std::vector<int> parameters;  // symbols
  std::vector<ExprPtr> exprs;
  std::vector<Body> bodies;
};

struct Template {
  Body body;
  std::vector<std::string> symbols;  // names, by index

  // Index of a name; -1 if the template does not mention it.
  int FindSymbol(std::string_view name) const;
};

}  // namespace baltoro::jinja
