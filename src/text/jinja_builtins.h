#pragma once

// The functions a template can name: filters, tests, methods of values and globals.

#include <optional>
#include <span>
#include <string_view>

#include "text/jinja_value.h"
#include "text/python_text.h"

namespace baltoro::jinja {

// Null if there is none of this name.
Builtin FindFilter(std::string_view name);
Builtin FindTest(std::string_view name);
Builtin FindMethod(const Value& self, std::string_view name);
Builtin FindGlobal(std::string_view name);

// The tables behind them, each defined beside its functions.
struct NamedBuiltin {
  std::string_view name;
  Builtin function;
};
Builtin FindIn(std::span<const NamedBuiltin> table, std::string_view name);
std::span<const NamedBuiltin> TextFilters();
std::span<const NamedBuiltin> SequenceFilters();
std::span<const NamedBuiltin> StringMethods();
std::span<const NamedBuiltin> ListMethods();
std::span<const NamedBuiltin> DictMethods();
std::span<const NamedBuiltin> LoopMethods();

// Gives each of `names` its argument, by place or by keyword. Absent ones stay empty.
Status BindSpan(const CallArgs& args,
                std::span<const std::string_view> names,
                std::span<std::optional<Value>> out);
template <size_t N>
Status Bind(const CallArgs& args,
            const std::string_view (&names)[N],
            std::optional<Value> (&out)[N]) {
  return BindSpan(args, names, out);
}
// The argument as what it must be, or an error that names it. Absent is `otherwise`.
Result<int64_t> IntArgument(const std::optional<Value>& value,
                            std::string_view name,
                            std::optional<int64_t> otherwise = std::nullopt);
Result<const Text*> TextArgument(const std::optional<Value>& value, std::string_view name);
bool BoolArgument(const std::optional<Value>& value, bool otherwise);

// Every letter in another case, trust kept; kTitle is str.title().
Text WithCase(const Text& text, LetterCase to);

Result<Value> ToJson(Interpreter& in, Value self, const CallArgs& args);  // the filter tojson

}  // namespace baltoro::jinja
