#include "grammar/mask_warmup.h"

#include <string_view>
#include <vector>

#include "base/check.h"
#include "grammar/compiled_grammar.h"
#include "grammar/grammar_builder.h"
#include "grammar/json_schema_format.h"
#include "grammar/json_text.h"
#include "grammar/leaf_profile.h"

namespace baltoro {

void WarmMaskStore(const std::shared_ptr<const TokenTrie>& trie,
                   const std::shared_ptr<MaskStore>& store) {
  GrammarBuilder builder;
  JsonText json(builder);
  const auto quoted = [&](std::string_view format) {
    const GrammarBuilder::Expr quote = builder.Literal("\"");
    const GrammarBuilder::Expr parts[] = {quote, AddFormat(json, format).value(), quote};
    return builder.Sequence(parts);
  };
  const GrammarBuilder::Expr branches[] = {
      json.Value(),
      json.StringOfLength(0, 1000),
      json.StringOfLength(1, GrammarBuilder::kUnbounded),
      json.Number(),
      json.Integer(),
      quoted("email"),
      quoted("uri"),
  };
  const auto root = builder.DeclareRule("root");
  builder.DefineRule(root, builder.Choice(branches));
  const auto grammar = builder.Build(root);
  BT_CHECK(grammar.ok());
  const CompiledGrammar& compiled = grammar.value().compiled();
  for (uint32_t state = 0; state < compiled.num_states(); ++state) {
    if (compiled.rules[compiled.states[state].rule].leaf) {
      LeafInside::Get(compiled, state, *trie, *store);
    }
  }
}

}  // namespace baltoro
