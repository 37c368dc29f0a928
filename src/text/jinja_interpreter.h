#pragma once

// Runs one render of a parsed template. Bounded in steps, output and depth, and without any way to
// the host: it sees the values given to it, and the clock through strftime_now. Everything it makes
// lives in its arena and dies with it. One thread, one render.
//
// Known differences from Jinja2: a variable given to the template stays visible in inner scopes
// even if the outermost scope assigns it further down; integers are int64; generators are lists,
// and functions cannot be printed.

#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "text/jinja_ast.h"
#include "text/jinja_value.h"

namespace baltoro::jinja {

struct Limits {
  int64_t steps = 1'000'000;               // evaluations; 256 bytes made count as one more
  size_t output_bytes = size_t{64} << 20;  // of any one text
  int depth = 400;                         // of nested evaluations
};

class Interpreter {
 public:
  // `parsed` must outlive the interpreter.
  explicit Interpreter(const Template& parsed, const Limits& limits = {});
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Defines a variable; one the template never mentions is dropped. All text in it is untrusted.
  // Integers beyond int64 become floats.
  Status Define(std::string_view name, const Json& value);

  // The rendered text. An error names the line, except one the template itself raised, which is
  // given as it is. All errors are kInvalidArgument.
  Result<Text> Run();

  // --- for the builtins ---

  Status Charge(int64_t steps);
  Status ChargeBytes(size_t bytes) { return Charge(static_cast<int64_t>(bytes / 256)); }
  int64_t& steps_left() { return steps_left_; }
  void set_raised() { raised_ = true; }

  // Takes the text into the arena, if it is not too long.
  Result<Value> NewString(Text text);
  Value NewList(std::vector<Value> items, ListKind kind = ListKind::kList);
  Value NewRange(std::vector<Value> items, int64_t begin, int64_t end, int64_t step);
  Value NewDict();
  Value NewNamespace();

  // str(value); what is not a string is untrusted.
  Status AppendString(const Value& value, Text& out);
  Result<Text> ToText(const Value& value);
  // repr(value)
  Status AppendRepr(const Value& value, std::string& out, int depth_left = 100);

  // What a loop over the value visits: items, keys, characters.
  Result<std::vector<Value>> Items(const Value& value);
  Result<bool> Contains(const Value& container, const Value& item);
  // value[key] and value.name as a template writes them: absent is Undefined.
  Result<Value> GetItem(const Value& object, const Value& key);
  Result<Value> GetAttribute(const Value& object, const std::string& name);
  Status SetEntry(Dict& dict, const Value& key, const Value& value);
  Result<Value> Arithmetic(Op op, const Value& a, const Value& b);

 private:
  struct Scope {
    Scope* parent = nullptr;
    std::vector<std::pair<int, Value>> names;

    Value* Find(int symbol);
    void Set(int symbol, const Value& value);
  };
  enum class Jump { kNone, kBreak, kContinue };
  class Deeper;

  Result<Value> FromJson(const Json& json, int depth_left);

  Status ExecBody(const Body& body);
  Status Exec(const Stmt& stmt);
  Status ExecIf(const Stmt& stmt);
  Status ExecFor(const Stmt& stmt);
  Status ExecWith(const Stmt& stmt);
  Status ExecCapture(const Stmt& stmt);
  Result<Value> Capture(const Body& body, const Expr* filters);
  Status Emit(std::string_view bytes, bool trusted);
  Status Emit(const Value& value);
  Status Assign(const Target& target, const Value& value);

  Result<Value> Eval(const Expr& expr);
  Result<Value> EvalName(const Expr& expr);
  Result<Value> EvalDict(const Expr& expr);
  Result<Value> EvalSlice(const Expr& expr);
  Result<Value> EvalCompare(const Expr& expr);
  Result<Value> EvalCall(const Expr& expr);
  Status EvalArguments(const Expr& expr, CallArgs& args);
  Result<std::vector<Value>> EvalAll(const std::vector<ExprPtr>& exprs);
  Result<Value> CallMacro(const Macro& macro, const CallArgs& args);

  const Template& parsed_;
  Limits limits_;
  int64_t steps_left_;
  int depth_ = 0;
  int line_ = 0;  // of what runs now
  bool raised_ = false;
  Jump jump_ = Jump::kNone;
  Text* out_ = nullptr;
  Value captured_;  // what a filter without operand works on
  Scope* scope_ = nullptr;
  int loop_symbol_;

  // The arena: addresses stay.
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Bound> bounds_;
  std::deque<Macro> macros_;
  std::deque<Loop> loops_;
  std::deque<Scope> scopes_;
};

struct Macro {
  const Stmt* stmt = nullptr;
  void* scope = nullptr;  // where it was defined (Interpreter::Scope)
};

struct Loop {
  std::vector<Value> items;
  size_t index = 0;
  std::vector<Value> seen;  // by loop.changed()
  bool changed_called = false;
};

// An error in Python's words for using a value that is not there.
Status UndefinedError(const Value& value);

}  // namespace baltoro::jinja
