#include "text/jinja_builtins.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "text/jinja_interpreter.h"

namespace baltoro::jinja {
namespace {

// --- tests ---

template <ValueKind kKind>
Result<Value> IsKind(Interpreter&, Value self, const CallArgs&) {
  return Value::Bool(self.kind == kKind);
}

Result<Value> IsDefined(Interpreter&, Value self, const CallArgs&) {
  return Value::Bool(!self.is_undefined());
}

template <bool kWanted>
Result<Value> IsBoolean(Interpreter&, Value self, const CallArgs&) {
  return Value::Bool(self.kind == ValueKind::kBool && self.boolean == kWanted);
}

Result<Value> IsNumber(Interpreter&, Value self, const CallArgs&) {
  return Value::Bool(self.is_number());
}

Result<Value> IsIterable(Interpreter&, Value self, const CallArgs&) {
  return Value::Bool(self.is_string() || self.is_list() || self.is_dict() || self.is_undefined());
}

Result<Value> IsSequence(Interpreter&, Value self, const CallArgs&) {
  // Jinja asks for len() and []; a dict has both.
  return Value::Bool(self.is_string() || self.is_list() || self.is_dict() || self.is_undefined());
}

Result<Value> IsCallable(Interpreter&, Value self, const CallArgs&) {
  return Value::Bool(self.kind == ValueKind::kBound || self.kind == ValueKind::kMacro ||
                     self.kind == ValueKind::kLoop || self.is_undefined());
}

Result<Value> Remainder(Interpreter& in, Value self, Value by) {
  return in.Arithmetic(Op::kMod, self, by);
}

template <int64_t kRest>
Result<Value> HasParity(Interpreter& in, Value self, const CallArgs&) {
  if (!self.is_number()) {
    return InvalidArgument(fmt::format("'{}' is neither odd nor even", TypeName(self)));
  }
  BT_ASSIGN_OR_RETURN(const Value rest, Remainder(in, self, Value::Int(2)));
  return Value::Bool(rest.AsDouble() == static_cast<double>(kRest));
}

Result<Value> IsDivisible(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"num"}, a));
  if (!a[0] || !a[0]->is_number() || !self.is_number()) {
    return InvalidArgument("divisibleby needs two numbers");
  }
  BT_ASSIGN_OR_RETURN(const Value rest, Remainder(in, self, *a[0]));
  return Value::Bool(rest.AsDouble() == 0);
}

Result<Value> IsIn(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"seq"}, a));
  if (!a[0]) return InvalidArgument("the test 'in' needs an argument");
  BT_ASSIGN_OR_RETURN(const bool found, in.Contains(*a[0], self));
  return Value::Bool(found);
}

template <Op kOp>
Result<Value> Compares(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"other"}, a));
  if (!a[0]) return InvalidArgument("a comparison needs an argument");
  if constexpr (kOp == Op::kEq || kOp == Op::kNe) {
    BT_ASSIGN_OR_RETURN(const bool same, Equal(self, *a[0], in.steps_left()));
    return Value::Bool(same == (kOp == Op::kEq));
  }
  BT_ASSIGN_OR_RETURN(const int order, Order(self, *a[0], in.steps_left()));
  if constexpr (kOp == Op::kLt) return Value::Bool(order < 0);
  if constexpr (kOp == Op::kLe) return Value::Bool(order <= 0);
  if constexpr (kOp == Op::kGt) return Value::Bool(order > 0);
  return Value::Bool(order >= 0);
}

Result<Value> IsSame(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"other"}, a));
  if (!a[0]) return InvalidArgument("the test 'sameas' needs an argument");
  if (self.kind != a[0]->kind) return Value::Bool(false);
  if (self.is_list() || self.is_dict()) return Value::Bool(self.list == a[0]->list);
  BT_ASSIGN_OR_RETURN(const bool same, Equal(self, *a[0], in.steps_left()));
  return Value::Bool(same);
}

// str.islower() and isupper(): at least one cased character, and none of the other case.
template <LetterCase kCase>
Result<Value> HasCase(Interpreter& in, Value self, const CallArgs&) {
  BT_ASSIGN_OR_RETURN(const Text text, in.ToText(self));
  BT_RETURN_IF_ERROR(in.ChargeBytes(text.size()));
  constexpr auto kOther = kCase == LetterCase::kLower ? LetterCase::kUpper : LetterCase::kLower;
  return Value::Bool(WithCase(text, kCase).bytes() == text.bytes() &&
                     WithCase(text, kOther).bytes() != text.bytes());
}

constexpr NamedBuiltin kTests[] = {
    {"defined", IsDefined},
    {"undefined", IsKind<ValueKind::kUndefined>},
    {"none", IsKind<ValueKind::kNone>},
    {"boolean", IsKind<ValueKind::kBool>},
    {"true", IsBoolean<true>},
    {"false", IsBoolean<false>},
    {"integer", IsKind<ValueKind::kInt>},
    {"float", IsKind<ValueKind::kFloat>},
    {"number", IsNumber},
    {"string", IsKind<ValueKind::kString>},
    {"mapping", IsKind<ValueKind::kDict>},
    {"iterable", IsIterable},
    {"sequence", IsSequence},
    {"callable", IsCallable},
    {"odd", HasParity<1>},
    {"even", HasParity<0>},
    {"divisibleby", IsDivisible},
    {"in", IsIn},
    {"eq", Compares<Op::kEq>},
    {"equalto", Compares<Op::kEq>},
    {"ne", Compares<Op::kNe>},
    {"lt", Compares<Op::kLt>},
    {"lessthan", Compares<Op::kLt>},
    {"le", Compares<Op::kLe>},
    {"gt", Compares<Op::kGt>},
    {"greaterthan", Compares<Op::kGt>},
    {"ge", Compares<Op::kGe>},
    {"sameas", IsSame},
    {"lower", HasCase<LetterCase::kLower>},
    {"upper", HasCase<LetterCase::kUpper>},
};

// --- globals ---

Result<Value> Range(Interpreter& in, Value, const CallArgs& args) {
  if (!args.named.empty() || args.positional.empty() || args.positional.size() > 3) {
    return InvalidArgument("range takes one to three integers");
  }
  int64_t bounds[3] = {0, 0, 1};
  for (size_t i = 0; i < args.positional.size(); ++i) {
    if (!args.positional[i].is_integral()) return InvalidArgument("range takes integers");
    bounds[args.positional.size() == 1 ? 1 : i] = args.positional[i].AsInt();
  }
  const auto [begin, end, step] = bounds;
  if (step == 0) return InvalidArgument("range step cannot be zero");
  constexpr size_t kRangeMax = 100'000;  // as Jinja's sandbox
  std::vector<Value> items;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    if (items.size() == kRangeMax) return InvalidArgument("range over 100000 items");
    items.push_back(Value::Int(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(items.size() / 4)));
  return in.NewRange(std::move(items), begin, end, step);
}

Result<Value> FillFromKeywords(Interpreter& in, Value made, const CallArgs& args) {
  for (const Value& source : args.positional) {
    if (!source.is_dict()) return InvalidArgument("expected a dict");
    for (const auto& [key, value] : source.dict->entries) {
      BT_RETURN_IF_ERROR(in.SetEntry(*made.dict, key, value));
    }
  }
  for (const auto& [name, value] : args.named) {
    BT_ASSIGN_OR_RETURN(const Value key, in.NewString(Text(std::string(name), true)));
    BT_RETURN_IF_ERROR(in.SetEntry(*made.dict, key, value));
  }
  return made;
}

Result<Value> MakeDict(Interpreter& in, Value, const CallArgs& args) {
  return FillFromKeywords(in, in.NewDict(), args);
}

Result<Value> MakeNamespace(Interpreter& in, Value, const CallArgs& args) {
  return FillFromKeywords(in, in.NewNamespace(), args);
}

Result<Value> RaiseException(Interpreter& in, Value, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"message"}, a));
  if (!a[0]) return InvalidArgument("raise_exception needs a message");
  BT_ASSIGN_OR_RETURN(const Text message, in.ToText(*a[0]));
  in.set_raised();
  return InvalidArgument(message.bytes());
}

// The one look outside: the local time, which templates print as the current date.
Result<Value> StrftimeNow(Interpreter& in, Value, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"format"}, a));
  BT_ASSIGN_OR_RETURN(const Text* format, TextArgument(a[0], "format"));
  if (format->size() > 256) return InvalidArgument("strftime_now format over 256 bytes");
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  char buffer[4096];
  const size_t length = std::strftime(buffer, sizeof(buffer), format->bytes().c_str(), &parts);
  return in.NewString(Text(std::string(buffer, length), /*trusted=*/false));
}

constexpr NamedBuiltin kGlobals[] = {
    {"range", Range},
    {"dict", MakeDict},
    {"namespace", MakeNamespace},
    {"raise_exception", RaiseException},
    {"strftime_now", StrftimeNow},
};

}  // namespace

Builtin FindIn(std::span<const NamedBuiltin> table, std::string_view name) {
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const NamedBuiltin& entry) { return entry.name == name; });
  return found == table.end() ? nullptr : found->function;
}

Builtin FindFilter(std::string_view name) {
  if (const Builtin filter = FindIn(TextFilters(), name)) return filter;
  return FindIn(SequenceFilters(), name);
}

Builtin FindTest(std::string_view name) {
  return FindIn(kTests, name);
}
Builtin FindGlobal(std::string_view name) {
  return FindIn(kGlobals, name);
}

Builtin FindMethod(const Value& self, std::string_view name) {
  switch (self.kind) {
    case ValueKind::kString:
      return FindIn(StringMethods(), name);
    case ValueKind::kList:
      return FindIn(ListMethods(), name);
    case ValueKind::kDict:
      return FindIn(DictMethods(), name);
    case ValueKind::kLoop:
      return FindIn(LoopMethods(), name);
    default:
      return nullptr;
  }
}

Status BindSpan(const CallArgs& args,
                std::span<const std::string_view> names,
                std::span<std::optional<Value>> out) {
  if (args.positional.size() > names.size()) {
    return InvalidArgument(fmt::format("takes at most {} argument(s)", names.size()));
  }
  for (size_t i = 0; i < args.positional.size(); ++i) out[i] = args.positional[i];
  for (const auto& [name, value] : args.named) {
    const auto at =
        static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (at == names.size() || out[at]) {
      return InvalidArgument(fmt::format("unexpected argument '{}'", name));
    }
    out[at] = value;
  }
  return {};
}

Result<int64_t> IntArgument(const std::optional<Value>& value,
                            std::string_view name,
                            std::optional<int64_t> otherwise) {
  if (!value && otherwise) return *otherwise;
  if (value && value->is_integral()) return value->AsInt();
  return InvalidArgument(fmt::format("argument '{}' must be an integer", name));
}

Result<const Text*> TextArgument(const std::optional<Value>& value, std::string_view name) {
  if (value && value->is_string()) return value->text;
  return InvalidArgument(fmt::format("argument '{}' must be a string", name));
}

bool BoolArgument(const std::optional<Value>& value, bool otherwise) {
  return value ? IsTruthy(*value) : otherwise;
}

}  // namespace baltoro::jinja
