// Output constraints over a real vocabulary: grammar_bench TOKENIZER_DIR SCHEMAS.json
//
// SCHEMAS.json is a list of {"name", "schema", "examples": [JSON texts]}. For each schema: the time
// to compile it, states and bytes of the grammar, the time of the first mask, and of the masks
// before every token of the examples, as the tokenizer cuts them. All share one store, which begins
// as a server's does; "again" is a second pass with all stored.

#include <time.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "base/json.h"
#include "grammar/grammar_builder.h"
#include "grammar/grammar_matcher.h"
#include "grammar/json_schema.h"
#include "grammar/mask_warmup.h"
#include "text/tokenizer.h"

namespace baltoro {
namespace {

// The time this thread has had the processor, so that other work on the machine does not count.
struct Clock {
  static double now() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
  }
};

double Micros(double since) {
  return Clock::now() - since;
}

struct Times {
  std::vector<double> micros;
  void Add(double one) { micros.push_back(one); }
  void Add(const Times& more) {
    micros.insert(micros.end(), more.micros.begin(), more.micros.end());
  }
  double Mean() const {
    return std::accumulate(micros.begin(), micros.end(), 0.0) /
           static_cast<double>(std::max<size_t>(1, micros.size()));
  }
  double At(double part) const {
    if (micros.empty()) return 0;
    std::vector<double> sorted = micros;
    std::sort(sorted.begin(), sorted.end());
    return sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
  }
};

// The masks before every token of the text and after the last; false if a token is refused.
bool Follow(GrammarMatcher& matcher,
            const std::vector<TokenId>& ids,
            std::span<uint32_t> mask,
            Times& masks,
            Times& accepts) {
  for (const TokenId id : ids) {
    auto since = Clock::now();
    matcher.FillMask(mask);
    masks.Add(Micros(since));
    if (!HasBit(mask, id)) return false;
    since = Clock::now();
    if (!matcher.Accept(id)) return false;
    accepts.Add(Micros(since));
  }
  const auto since = Clock::now();
  matcher.FillMask(mask);
  masks.Add(Micros(since));
  return matcher.CanFinish();
}

void PrintRow(const std::string& name, const char* left, const Times& fresh, const Times& again) {
  std::printf("| %s | %s | %zu | %.1f | %.1f | %.1f | %.1f | %.2f |\n", name.c_str(), left,
              fresh.micros.size(), fresh.Mean(), fresh.At(0.5), fresh.At(0.99), fresh.At(1),
              again.Mean());
}

int Main(const std::string& tokenizer_dir, const std::string& schemas_path) {
  auto tokenizer = Tokenizer::Load(tokenizer_dir);
  auto schemas = ReadJsonFile(schemas_path);
  if (!tokenizer.ok() || !schemas.ok()) {
    std::fprintf(stderr, "%s\n",
                 (tokenizer.ok() ? schemas.status() : tokenizer.status()).message().c_str());
    return 1;
  }
  auto since = Clock::now();
  const auto trie = TokenTrie::Make(*tokenizer.value(), tokenizer.value()->vocab_size());
  std::printf("%d tokens, tries in %.0f ms, %.1f MiB\n\n", trie->vocab_size(), Micros(since) / 1000,
              static_cast<double>(trie->num_bytes()) / (1 << 20));
  const auto store = std::make_shared<MaskStore>();
  since = Clock::now();
  WarmMaskStore(trie, store);
  std::printf("store made in %.1f ms\n\n", Micros(since) / 1000);
  std::printf(
      "| schema | compile ms, states, KiB, load ms, first us | masks | mean us | p50 | p99 | max | "
      "again mean us |\n|---|---|---|---|---|---|---|---|\n");
  std::vector<uint32_t> mask(trie->words());
  Times all, all_again, firsts, compiles, accepts;
  for (const Json& entry : schemas.value()) {
    const std::string name = entry["name"].get<std::string>();
    since = Clock::now();
    GrammarBuilder builder;
    const auto expr = AddJsonSchema(builder, entry["schema"], {.name = name}, nullptr);
    Status status = expr.status();
    Grammar grammar;
    if (status.ok()) {
      const auto root = builder.DeclareRule("root");
      builder.DefineRule(root, expr.value());
      auto built = builder.Build(root);
      status = built.status();
      if (built.ok()) grammar = std::move(built).value();
    }
    const double compile = Micros(since);
    if (!status.ok()) {
      std::printf("| %s | %s |\n", name.c_str(), status.message().c_str());
      continue;
    }
    compiles.Add(compile);
    const std::string bytes = grammar.Serialise();
    since = Clock::now();
    grammar = Grammar::Parse(bytes).value();
    const double load = Micros(since);

    Times fresh, again;
    double first = -1;
    std::string refused;
    for (Times* times : {&fresh, &again}) {
      for (const Json& example : entry["examples"]) {
        const std::string text = example.is_string() ? example.get<std::string>() : example.dump();
        GrammarMatcher matcher(grammar, trie, store);
        if (first < 0) {
          since = Clock::now();
          matcher.FillMask(mask);
          first = Micros(since);
          fresh.Add(first);
        }
        if (!Follow(matcher, tokenizer.value()->Encode(text), mask, *times, accepts))
          refused = text;
      }
    }
    char left[128];
    std::snprintf(left, sizeof(left), "%.1f, %lld, %.0f, %.2f, %.0f", compile / 1000,
                  static_cast<long long>(grammar.num_states()),
                  static_cast<double>(grammar.num_bytes()) / 1024, load / 1000, first);
    PrintRow(name, left, fresh, again);
    if (!refused.empty()) std::printf("refused: %s\n", refused.substr(0, 200).c_str());
    firsts.Add(first);
    all.Add(fresh);
    all_again.Add(again);
  }
  PrintRow("all", "", all, all_again);
  std::printf("\ncompile: mean %.1f ms, max %.1f ms; first masks: mean %.0f us, max %.0f us; ",
              compiles.Mean() / 1000, compiles.At(1) / 1000, firsts.Mean(), firsts.At(1));
  std::printf("accept: mean %.2f us, p99 %.2f us; store: %.1f MiB\n", accepts.Mean(),
              accepts.At(0.99), static_cast<double>(store->num_bytes()) / (1 << 20));
  return 0;
}

}  // namespace
}  // namespace baltoro

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: grammar_bench TOKENIZER_DIR SCHEMAS.json\n");
    return 2;
  }
  return baltoro::Main(argv[1], argv[2]);
}
