// Writes values of schemas at random: schema_probe FILE SAMPLES SEED. FILE is a JSON array of
// {"schema": ...}; for each, one line is printed: {"index", "error" or "unchecked" and "samples"}.
// The reader on the other side of the pipe (sample_schemas.py) judges them.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/gzip.h"
#include "base/json.h"
#include "grammar/grammar_matcher.h"
#include "grammar/json_schema.h"
#include "grammar/token_trie.h"

namespace {

using baltoro::Json;

constexpr size_t kSoftLength = 1500;  // from here on the text is brought to its end
constexpr size_t kHardLength = 30'000;

std::shared_ptr<const baltoro::TokenTrie> BytesAsTokens() {
  static std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  std::vector<std::string_view> texts;
  for (size_t i = 0; i < 256; ++i) texts.push_back(std::string_view(bytes).substr(i, 1));
  return std::make_shared<baltoro::TokenTrie>(texts, std::vector<bool>(256, false));
}

bool Closes(int byte) {
  return byte == '"' || byte == '}' || byte == ']';
}

// A random walk over the bytes that may come; "" if it led to a place without a way on.
std::string Walk(const baltoro::Grammar& grammar,
                 const std::shared_ptr<const baltoro::TokenTrie>& trie,
                 std::mt19937_64& random) {
  baltoro::GrammarMatcher matcher(grammar, trie);
  std::string out;
  std::vector<uint32_t> mask(trie->words());
  while (out.size() < kHardLength) {
    const bool hurry = out.size() > kSoftLength;
    if (matcher.CanFinish() && (hurry || random() % 2 == 0)) return out;
    matcher.FillMask(mask);
    std::vector<int> all, closing;
    for (int byte = 0; byte < 256; ++byte) {
      if ((mask[static_cast<size_t>(byte) / 32] >> (byte % 32) & 1) == 0) continue;
      all.push_back(byte);
      if (Closes(byte)) closing.push_back(byte);
    }
    if (all.empty()) return matcher.CanFinish() ? out : "";
    const bool close = !closing.empty() && random() % 100 < (hurry ? 95 : 25);
    const std::vector<int>& from = close ? closing : all;
    const int byte = from[random() % from.size()];
    if (!matcher.Accept(byte)) return "";
    out += static_cast<char>(byte);
  }
  return "cut";
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const baltoro::Result<std::string> text = baltoro::ReadPlainOrGzip(argv[1]);
  if (!text.ok()) {
    std::fprintf(stderr, "%s\n", text.status().message().c_str());
    return 1;
  }
  const Json cases = Json::parse(text.value());
  const int samples = std::atoi(argv[2]);
  std::mt19937_64 random(std::strtoull(argv[3], nullptr, 10));
  const auto trie = BytesAsTokens();
  for (size_t i = 0; i < cases.size(); ++i) {
    Json line = {{"index", i}};
    std::vector<std::string> unchecked;
    baltoro::GrammarBuilder builder;
    const auto expr = baltoro::AddJsonSchema(builder, cases[i]["schema"], {}, &unchecked);
    baltoro::Result<baltoro::Grammar> grammar = baltoro::InvalidArgument("");
    if (expr.ok()) {
      const auto start = builder.DeclareRule("start");
      builder.DefineRule(start, expr.value());
      grammar = builder.Build(start);
    }
    if (!expr.ok() || !grammar.ok()) {
      line["error"] = expr.ok() ? grammar.status().message() : expr.status().message();
    } else {
      line["unchecked"] = unchecked;
      line["samples"] = Json::array();
      for (int n = 0; n < samples; ++n) {
        line["samples"].push_back(Walk(grammar.value(), trie, random));
      }
    }
    std::printf("%s\n", line.dump().c_str());
  }
  return 0;
}
