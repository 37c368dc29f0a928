// A schema out of arbitrary bytes: compiled within its bounds or refused with a reason, in both
// modes, and never with a crash. What strict mode takes, the other takes too, with nothing left
// unchecked.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "grammar/grammar_matcher.h"
#include "grammar/json_schema.h"

namespace {

bool Compile(const baltoro::Json& schema, bool strict, std::vector<std::string>& unchecked) {
  baltoro::GrammarBuilder builder;
  const auto expr =
      baltoro::AddJsonSchema(builder, schema, {.strict = strict, .name = "fuzz"}, &unchecked);
  if (!expr.ok()) {
    if (expr.status().message().empty()) std::abort();
    return false;
  }
  const auto start = builder.DeclareRule("start");
  builder.DefineRule(start, expr.value());
  const auto grammar = builder.Build(start);
  if (!grammar.ok()) std::abort();  // AddJsonSchema has tried it
  for (const char* text : {"{}", "[]", "\"a\"", "1", "{\"a\":[1,\"b\",null]}"}) {
    (void)baltoro::Matches(grammar.value(), text);
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto schema =
      baltoro::ParseJson(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!schema.ok()) return 0;
  std::vector<std::string> unchecked, left;
  const bool strict = Compile(schema.value(), true, unchecked);
  if (!unchecked.empty()) std::abort();
  const bool relaxed = Compile(schema.value(), false, left);
  if (strict && (!relaxed || !left.empty())) std::abort();
  return 0;
}
