// Grammar text, arbitrary: never crashes, a refusal says where, and what was built is read back
// from its bytes as the same grammar.

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "grammar/grammar_matcher.h"
#include "grammar/grammar_text.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  baltoro::GrammarBuilder builder({.max_states = 5'000});
  const auto root = baltoro::AddGrammarText(builder, text);
  if (!root.ok()) {
    BT_CHECK(root.status().message().rfind("line ", 0) == 0 ||
             root.status().message().find("UTF-8") != std::string_view::npos);
    return 0;
  }
  const auto grammar = builder.Build(root.value());
  if (!grammar.ok()) {
    BT_CHECK(!grammar.status().message().empty());
    return 0;
  }
  const std::string bytes = grammar.value().Serialise();
  const auto again = baltoro::Grammar::Parse(bytes);
  BT_CHECK(again.ok() && again.value().Serialise() == bytes);
  const std::string_view sample = text.substr(0, 200);
  BT_CHECK(baltoro::Matches(grammar.value(), sample) == baltoro::Matches(again.value(), sample));
  return 0;
}
