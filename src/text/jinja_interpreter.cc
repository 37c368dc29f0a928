#include "text/jinja_interpreter.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "text/jinja_builtins.h"
#include "text/python_text.h"

namespace baltoro::jinja {

class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& in) : in_(in) { ++in_.depth_; }
  ~Deeper() { --in_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;
  Status Check() const {
    if (in_.depth_ <= in_.limits_.depth) return in_.Charge(1);
    return InvalidArgument("nested too deeply");
  }

 private:
  Interpreter& in_;
};

Value* Interpreter::Scope::Find(int symbol) {
  for (auto& [name, value] : names) {
    if (name == symbol) return &value;
  }
  return nullptr;
}

void Interpreter::Scope::Set(int symbol, const Value& value) {
  if (Value* known = Find(symbol)) {
    *known = value;
  } else {
    names.emplace_back(symbol, value);
  }
}

Interpreter::Interpreter(const Template& parsed, const Limits& limits)
    : parsed_(parsed),
      limits_(limits),
      steps_left_(limits.steps),
      loop_symbol_(parsed.FindSymbol("loop")) {
  scope_ = &scopes_.emplace_back();
}

Status Interpreter::Define(std::string_view name, const Json& value) {
  const int symbol = parsed_.FindSymbol(name);
  if (symbol < 0) return {};
  BT_ASSIGN_OR_RETURN(const Value made, FromJson(value, 256));
  scope_->Set(symbol, made);
  return {};
}

Result<Value> Interpreter::FromJson(const Json& json, int depth_left) {
  if (depth_left == 0) return InvalidArgument("JSON nested too deeply");
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned: {
      const auto number = json.get<uint64_t>();
      if (number > INT64_MAX) return Value::Float(static_cast<double>(number));
      return Value::Int(static_cast<int64_t>(number));
    }
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return NewString(Text(json.get_ref<const std::string&>(), /*trusted=*/false));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) {
        BT_ASSIGN_OR_RETURN(const Value made, FromJson(item, depth_left - 1));
        items.push_back(made);
      }
      return NewList(std::move(items));
    }
    case Json::value_t::object: {
      const Value dict = NewDict();
      dict.dict->entries.reserve(json.size());
      for (const auto& [key, item] : json.items()) {
        BT_ASSIGN_OR_RETURN(const Value name, NewString(Text(key, /*trusted=*/false)));
        BT_ASSIGN_OR_RETURN(const Value made, FromJson(item, depth_left - 1));
        dict.dict->entries.emplace_back(name, made);
      }
      return dict;
    }
    default:
      return Value::None();
  }
}

Result<Text> Interpreter::Run() {
  Text out;
  out_ = &out;
  // The template's own names live in a scope of their own over the variables given.
  Scope& root = scopes_.emplace_back();
  root.parent = scope_;
  scope_ = &root;
  const Status done = ExecBody(parsed_.body);
  if (done.ok()) return out;
  if (raised_) return done;
  return InvalidArgument(fmt::format("chat template, line {}: {}", line_, done.message()));
}

Status Interpreter::Charge(int64_t steps) {
  steps_left_ -= steps;
  if (steps_left_ >= 0) return {};
  return InvalidArgument(fmt::format("more than {} steps", limits_.steps));
}

Result<Value> Interpreter::NewString(Text text) {
  if (text.size() > limits_.output_bytes) {
    return InvalidArgument(fmt::format("text over {} bytes", limits_.output_bytes));
  }
  return Value::String(&texts_.emplace_back(std::move(text)));
}

Value Interpreter::NewList(std::vector<Value> items, ListKind kind) {
  Value value;
  value.kind = ValueKind::kList;
  value.list = &lists_.emplace_back(List{std::move(items), kind});
  return value;
}

Value Interpreter::NewRange(std::vector<Value> items, int64_t begin, int64_t end, int64_t step) {
  const Value value = NewList(std::move(items), ListKind::kRange);
  value.list->begin = begin;
  value.list->end = end;
  value.list->step = step;
  return value;
}

Value Interpreter::NewDict() {
  Value value;
  value.kind = ValueKind::kDict;
  value.dict = &dicts_.emplace_back();
  return value;
}

Value Interpreter::NewNamespace() {
  Value value = NewDict();
  value.kind = ValueKind::kNamespace;
  return value;
}

// --- statements ---

Status Interpreter::ExecBody(const Body& body) {
  for (const Stmt& stmt : body) {
    BT_RETURN_IF_ERROR(Exec(stmt));
    if (jump_ != Jump::kNone) break;
  }
  return {};
}

Status Interpreter::Exec(const Stmt& stmt) {
  const Deeper deeper(*this);
  BT_RETURN_IF_ERROR(deeper.Check());
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      return Emit(stmt.text, /*trusted=*/true);
    case StmtKind::kOutput: {
      BT_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.exprs[0]));
      return Emit(value);
    }
    case StmtKind::kIf:
      return ExecIf(stmt);
    case StmtKind::kFor:
      return ExecFor(stmt);
    case StmtKind::kSet: {
      BT_ASSIGN_OR_RETURN(const Value value, Eval(*stmt.exprs[0]));
      return Assign(stmt.target, value);
    }
    case StmtKind::kCapture:
    case StmtKind::kFilter:
      return ExecCapture(stmt);
    case StmtKind::kWith:
      return ExecWith(stmt);
    case StmtKind::kMacro: {
      Value macro;
      macro.kind = ValueKind::kMacro;
      macro.macro = &macros_.emplace_back(Macro{&stmt, scope_});
      scope_->Set(stmt.target.symbol, macro);
      return {};
    }
    case StmtKind::kBreak:
      jump_ = Jump::kBreak;
      return {};
    case StmtKind::kContinue:
      jump_ = Jump::kContinue;
      return {};
  }
  return {};
}

Status Interpreter::ExecIf(const Stmt& stmt) {
  for (size_t i = 0; i < stmt.exprs.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const Value condition, Eval(*stmt.exprs[i]));
    if (IsTruthy(condition)) return ExecBody(stmt.bodies[i]);
  }
  if (stmt.bodies.size() > stmt.exprs.size()) return ExecBody(stmt.bodies.back());
  return {};
}

Status Interpreter::ExecFor(const Stmt& stmt) {
  BT_ASSIGN_OR_RETURN(const Value iterated, Eval(*stmt.exprs[0]));
  BT_ASSIGN_OR_RETURN(std::vector<Value> items, Items(iterated));
  Scope& scope = scopes_.emplace_back();
  scope.parent = scope_;
  Scope* const outer = std::exchange(scope_, &scope);
  if (stmt.exprs[1]) {
    std::vector<Value> chosen;
    for (const Value& item : items) {
      scope.names.clear();
      BT_RETURN_IF_ERROR(Assign(stmt.target, item));
      BT_ASSIGN_OR_RETURN(const Value wanted, Eval(*stmt.exprs[1]));
      if (IsTruthy(wanted)) chosen.push_back(item);
    }
    items = std::move(chosen);
  }
  Value loop;
  loop.kind = ValueKind::kLoop;
  loop.loop = &loops_.emplace_back(Loop{std::move(items), 0, {}, false});
  const std::vector<Value>& visited = loop.loop->items;
  bool completed = false;
  for (size_t i = 0; i < visited.size(); ++i) {
    BT_RETURN_IF_ERROR(Charge(1));
    scope.names.clear();
    loop.loop->index = i;
    if (loop_symbol_ >= 0) scope.Set(loop_symbol_, loop);
    BT_RETURN_IF_ERROR(Assign(stmt.target, visited[i]));
    BT_RETURN_IF_ERROR(ExecBody(stmt.bodies[0]));
    completed |= jump_ == Jump::kNone;
    if (std::exchange(jump_, Jump::kNone) == Jump::kBreak) break;
  }
  // As Jinja: else runs unless some iteration came to its end.
  if (!completed && stmt.bodies.size() > 1) {
    scope.names.clear();
    BT_RETURN_IF_ERROR(ExecBody(stmt.bodies[1]));
  }
  scope_ = outer;
  return {};
}

Status Interpreter::ExecWith(const Stmt& stmt) {
  BT_ASSIGN_OR_RETURN(const std::vector<Value> values, EvalAll(stmt.exprs));
  Scope& scope = scopes_.emplace_back();
  scope.parent = scope_;
  for (size_t i = 0; i < values.size(); ++i) scope.Set(stmt.parameters[i], values[i]);
  Scope* const outer = std::exchange(scope_, &scope);
  BT_RETURN_IF_ERROR(ExecBody(stmt.bodies[0]));
  scope_ = outer;
  return {};
}

Status Interpreter::ExecCapture(const Stmt& stmt) {
  BT_ASSIGN_OR_RETURN(const Value value, Capture(stmt.bodies[0], stmt.exprs[0].get()));
  if (stmt.kind == StmtKind::kFilter) return Emit(value);
  return Assign(stmt.target, value);
}

// The body's text, in a scope of its own, through filters if there are any.
Result<Value> Interpreter::Capture(const Body& body, const Expr* filters) {
  Text text;
  Scope& scope = scopes_.emplace_back();
  scope.parent = scope_;
  Scope* const outer = std::exchange(scope_, &scope);
  Text* const out = std::exchange(out_, &text);
  BT_RETURN_IF_ERROR(ExecBody(body));
  out_ = out;
  scope_ = outer;
  BT_ASSIGN_OR_RETURN(const Value value, NewString(std::move(text)));
  if (filters == nullptr) return value;
  const Value before = std::exchange(captured_, value);
  auto filtered = Eval(*filters);
  captured_ = before;
  return filtered;
}

Status Interpreter::Emit(std::string_view bytes, bool trusted) {
  BT_RETURN_IF_ERROR(ChargeBytes(bytes.size()));
  if (out_->size() + bytes.size() > limits_.output_bytes) {
    return InvalidArgument(fmt::format("more than {} bytes of text", limits_.output_bytes));
  }
  out_->Append(bytes, trusted);
  return {};
}

Status Interpreter::Emit(const Value& value) {
  BT_RETURN_IF_ERROR(AppendString(value, *out_));
  if (out_->size() <= limits_.output_bytes) return {};
  return InvalidArgument(fmt::format("more than {} bytes of text", limits_.output_bytes));
}

Status Interpreter::Assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    BT_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(value));
    if (items.size() != target.parts.size()) {
      return InvalidArgument(
          fmt::format("cannot unpack {} values into {} names", items.size(), target.parts.size()));
    }
    for (size_t i = 0; i < items.size(); ++i) {
      BT_RETURN_IF_ERROR(Assign(target.parts[i], items[i]));
    }
    return {};
  }
  if (target.attribute.empty()) {
    scope_->Set(target.symbol, value);
    return {};
  }
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    const Value* space = scope->Find(target.symbol);
    if (space == nullptr) continue;
    if (space->kind != ValueKind::kNamespace) break;
    BT_ASSIGN_OR_RETURN(const Value key, NewString(Text(target.attribute, true)));
    return SetEntry(*space->dict, key, value);
  }
  return InvalidArgument("cannot assign an attribute of what is not a namespace");
}

// --- expressions ---

Result<Value> Interpreter::Eval(const Expr& expr) {
  const Deeper deeper(*this);
  BT_RETURN_IF_ERROR(deeper.Check());
  switch (expr.kind) {
    case ExprKind::kLiteral:
      return expr.literal;
    case ExprKind::kName:
      return EvalName(expr);
    case ExprKind::kList:
    case ExprKind::kTuple: {
      BT_ASSIGN_OR_RETURN(std::vector<Value> items, EvalAll(expr.kids));
      return NewList(std::move(items),
                     expr.kind == ExprKind::kTuple ? ListKind::kTuple : ListKind::kList);
    }
    case ExprKind::kDict:
      return EvalDict(expr);
    case ExprKind::kAttribute: {
      BT_ASSIGN_OR_RETURN(const Value object, Eval(*expr.kids[0]));
      return GetAttribute(object, expr.name);
    }
    case ExprKind::kItem: {
      BT_ASSIGN_OR_RETURN(const Value object, Eval(*expr.kids[0]));
      BT_ASSIGN_OR_RETURN(const Value key, Eval(*expr.kids[1]));
      return GetItem(object, key);
    }
    case ExprKind::kSlice:
      return EvalSlice(expr);
    case ExprKind::kCall:
      return EvalCall(expr);
    case ExprKind::kFilter:
    case ExprKind::kTest: {
      if (expr.builtin == nullptr) {
        return InvalidArgument(fmt::format("no filter or test '{}'", expr.name));
      }
      Value operand = captured_;
      if (expr.kids[0]) {
        BT_ASSIGN_OR_RETURN(operand, Eval(*expr.kids[0]));
      }
      CallArgs args;
      BT_RETURN_IF_ERROR(EvalArguments(expr, args));
      return expr.builtin(*this, operand, args);
    }
    case ExprKind::kNegate:
    case ExprKind::kPlus: {
      BT_ASSIGN_OR_RETURN(const Value value, Eval(*expr.kids[0]));
      if (value.is_undefined()) return UndefinedError(value);
      if (!value.is_number()) {
        return InvalidArgument(fmt::format("a sign before a '{}'", TypeName(value)));
      }
      if (expr.kind == ExprKind::kPlus) {
        return value.is_integral() ? Value::Int(value.AsInt()) : value;
      }
      if (!value.is_integral()) return Value::Float(-value.real);
      return Arithmetic(Op::kSub, Value::Int(0), value);
    }
    case ExprKind::kNot: {
      BT_ASSIGN_OR_RETURN(const Value value, Eval(*expr.kids[0]));
      return Value::Bool(!IsTruthy(value));
    }
    case ExprKind::kAnd:
    case ExprKind::kOr: {
      BT_ASSIGN_OR_RETURN(const Value left, Eval(*expr.kids[0]));
      if (IsTruthy(left) == (expr.kind == ExprKind::kOr)) return left;
      return Eval(*expr.kids[1]);
    }
    case ExprKind::kBinary: {
      BT_ASSIGN_OR_RETURN(const Value left, Eval(*expr.kids[0]));
      BT_ASSIGN_OR_RETURN(const Value right, Eval(*expr.kids[1]));
      return Arithmetic(expr.ops[0], left, right);
    }
    case ExprKind::kConcat: {
      Text text;
      for (const ExprPtr& kid : expr.kids) {
        BT_ASSIGN_OR_RETURN(const Value value, Eval(*kid));
        BT_RETURN_IF_ERROR(AppendString(value, text));
      }
      return NewString(std::move(text));
    }
    case ExprKind::kCompare:
      return EvalCompare(expr);
    case ExprKind::kChoice: {
      BT_ASSIGN_OR_RETURN(const Value condition, Eval(*expr.kids[1]));
      if (IsTruthy(condition)) return Eval(*expr.kids[0]);
      if (expr.kids[2]) return Eval(*expr.kids[2]);
      return Value::Undefined();
    }
  }
  return Value::Undefined();
}

Result<std::vector<Value>> Interpreter::EvalAll(const std::vector<ExprPtr>& exprs) {
  std::vector<Value> values;
  values.reserve(exprs.size());
  for (const ExprPtr& expr : exprs) {
    BT_ASSIGN_OR_RETURN(const Value value, Eval(*expr));
    values.push_back(value);
  }
  return values;
}

Result<Value> Interpreter::EvalName(const Expr& expr) {
  for (Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (const Value* value = scope->Find(expr.symbol)) return *value;
  }
  const std::string& name = parsed_.symbols[static_cast<size_t>(expr.symbol)];
  if (const Builtin global = FindGlobal(name)) {
    Value value;
    value.kind = ValueKind::kBound;
    value.bound = &bounds_.emplace_back(Bound{Value(), global});
    return value;
  }
  return Value::Undefined(&name);
}

Result<Value> Interpreter::EvalDict(const Expr& expr) {
  const Value dict = NewDict();
  for (size_t i = 0; i + 1 < expr.kids.size(); i += 2) {
    BT_ASSIGN_OR_RETURN(const Value key, Eval(*expr.kids[i]));
    BT_ASSIGN_OR_RETURN(const Value value, Eval(*expr.kids[i + 1]));
    BT_RETURN_IF_ERROR(SetEntry(*dict.dict, key, value));
  }
  return dict;
}

Result<Value> Interpreter::EvalCompare(const Expr& expr) {
  BT_ASSIGN_OR_RETURN(Value left, Eval(*expr.kids[0]));
  for (size_t i = 0; i < expr.ops.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const Value right, Eval(*expr.kids[i + 1]));
    const Op op = expr.ops[i];
    bool holds = false;
    if (op == Op::kIn || op == Op::kNotIn) {
      BT_ASSIGN_OR_RETURN(holds, Contains(right, left));
      holds = holds == (op == Op::kIn);
    } else if (op == Op::kEq || op == Op::kNe) {
      BT_ASSIGN_OR_RETURN(holds, Equal(left, right, steps_left_));
      holds = holds == (op == Op::kEq);
    } else {
      if (left.is_undefined()) return UndefinedError(left);
      if (right.is_undefined()) return UndefinedError(right);
      BT_ASSIGN_OR_RETURN(const int order, Order(left, right, steps_left_));
      holds = op == Op::kLt   ? order < 0
              : op == Op::kLe ? order <= 0
              : op == Op::kGt ? order > 0
                              : order >= 0;
    }
    if (!holds) return Value::Bool(false);
    left = right;
  }
  return Value::Bool(true);
}

Result<Value> Interpreter::EvalSlice(const Expr& expr) {
  BT_ASSIGN_OR_RETURN(const Value object, Eval(*expr.kids[0]));
  if (object.is_undefined()) return UndefinedError(object);
  if (!object.is_list() && !object.is_string()) {
    return InvalidArgument(fmt::format("a '{}' cannot be sliced", TypeName(object)));
  }
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, Items(object));
  const auto size = static_cast<int64_t>(items.size());
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!expr.kids[i + 1]) continue;
    BT_ASSIGN_OR_RETURN(const Value bound, Eval(*expr.kids[i + 1]));
    if (bound.is_none()) continue;
    if (!bound.is_integral()) return InvalidArgument("slice bounds must be integers");
    bounds[i] = bound.AsInt();
  }
  const int64_t step = bounds[2].value_or(1);
  if (step == 0) return InvalidArgument("slice step cannot be zero");
  // Python's rules: negative bounds count from the end, then all are clamped.
  const int64_t low = step < 0 ? -1 : 0;
  const int64_t high = step < 0 ? size - 1 : size;
  const auto clamp = [&](std::optional<int64_t> bound, int64_t absent) {
    if (!bound) return absent;
    return std::clamp(*bound < 0 ? std::max(*bound, -size - 1) + size : *bound, low, high);
  };
  const int64_t begin = clamp(bounds[0], step < 0 ? high : low);
  const int64_t end = clamp(bounds[1], step < 0 ? low : high);
  std::vector<Value> chosen;
  for (int64_t i = begin; step < 0 ? i > end : i < end;) {
    chosen.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (object.is_list() && object.list->kind == ListKind::kRange) {
    const List& range = *object.list;
    return NewRange(std::move(chosen), range.begin + begin * range.step,
                    range.begin + end * range.step, range.step * step);
  }
  if (object.is_list()) return NewList(std::move(chosen), object.list->kind);
  Text text;
  for (const Value& character : chosen) text.Append(*character.text);
  return NewString(std::move(text));
}

Status Interpreter::EvalArguments(const Expr& expr, CallArgs& args) {
  const size_t named = expr.kids.size() - expr.keywords.size();
  for (size_t i = 1; i < expr.kids.size(); ++i) {
    BT_ASSIGN_OR_RETURN(const Value value, Eval(*expr.kids[i]));
    if (i < named) {
      args.positional.push_back(value);
    } else {
      args.named.emplace_back(expr.keywords[i - named], value);
    }
  }
  return {};
}

Result<Value> Interpreter::EvalCall(const Expr& expr) {
  BT_ASSIGN_OR_RETURN(const Value callee, Eval(*expr.kids[0]));
  CallArgs args;
  BT_RETURN_IF_ERROR(EvalArguments(expr, args));
  line_ = expr.line;
  if (callee.kind == ValueKind::kBound) {
    return callee.bound->function(*this, callee.bound->self, args);
  }
  if (callee.kind == ValueKind::kMacro) return CallMacro(*callee.macro, args);
  if (callee.is_undefined()) return UndefinedError(callee);
  return InvalidArgument(fmt::format("a '{}' cannot be called", TypeName(callee)));
}

Result<Value> Interpreter::CallMacro(const Macro& macro, const CallArgs& args) {
  const Stmt& stmt = *macro.stmt;
  const size_t count = stmt.parameters.size();
  if (args.positional.size() > count) {
    return InvalidArgument(
        fmt::format("macro '{}' takes not more than {} argument(s)", stmt.name, count));
  }
  Scope& scope = scopes_.emplace_back();
  scope.parent = static_cast<Scope*>(macro.scope);
  for (size_t i = 0; i < args.positional.size(); ++i) {
    scope.Set(stmt.parameters[i], args.positional[i]);
  }
  for (const auto& [name, value] : args.named) {
    size_t i = 0;
    while (i < count && parsed_.symbols[static_cast<size_t>(stmt.parameters[i])] != name) ++i;
    if (i == count || i < args.positional.size()) {
      return InvalidArgument(fmt::format("macro '{}' takes no argument '{}'", stmt.name, name));
    }
    scope.Set(stmt.parameters[i], value);
  }
  Scope* const outer = std::exchange(scope_, &scope);
  for (size_t i = args.positional.size(); i < count; ++i) {
    const int symbol = stmt.parameters[i];
    if (scope.Find(symbol) != nullptr) continue;
    Value value = Value::Undefined(&parsed_.symbols[static_cast<size_t>(symbol)]);
    if (stmt.exprs[i]) {
      BT_ASSIGN_OR_RETURN(value, Eval(*stmt.exprs[i]));
    }
    scope.Set(symbol, value);
  }
  auto result = Capture(stmt.bodies[0], nullptr);
  scope_ = outer;
  return result;
}

Status UndefinedError(const Value& value) {
  if (value.missing == nullptr) return InvalidArgument("a value is undefined");
  return InvalidArgument(fmt::format("'{}' is undefined", *value.missing));
}

}  // namespace baltoro::jinja
