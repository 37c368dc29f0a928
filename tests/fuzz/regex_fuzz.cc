// A regular expression and a text out of arbitrary bytes, parted by the first line break: parsed
// or refused with a reason, and the two ways to match, simulation and grammar, agree.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/utf8.h"
#include "grammar/grammar_matcher.h"
#include "grammar/regex.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t line = std::min(input.find('\n'), input.size());
  const std::string_view pattern = input.substr(0, line);
  const std::string text =
      baltoro::Utf8Sanitize(input.substr(std::min(line + 1, input.size())).substr(0, 64));
  const auto regex = baltoro::Regex::Parse(pattern);
  if (!regex.ok()) {
    if (regex.status().message().empty()) std::abort();
    return 0;
  }
  bool sure[2] = {false, false};
  for (const bool anchored : {false, true}) {
    for (const bool widest : {false, true}) {
      const baltoro::RegexOptions options{.anchored = anchored, .widest = widest};
      const auto simulated = regex.value().Matches(text, options);
      if (!simulated.ok()) continue;
      if (!widest) sure[anchored] = simulated.value();
      if (widest && sure[anchored] && !simulated.value()) std::abort();
      baltoro::GrammarBuilder builder({.max_states = 5000});
      const auto start = builder.DeclareRule("start");
      builder.DefineRule(start, regex.value().Add(builder, options));
      const auto grammar = builder.Build(start);
      if (!grammar.ok()) continue;
      if (baltoro::Matches(grammar.value(), text) != simulated.value()) std::abort();
    }
  }
  return 0;
}
