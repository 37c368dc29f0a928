#include "bench/serve/random_text.h"

#include <algorithm>

namespace baltoro {
namespace {

constexpr size_t kWordsMin = 64;

bool IsWord(std::string_view bytes) {
  if (bytes.size() < 2 || bytes[0] != ' ') return false;
  return std::ranges::all_of(
      bytes.substr(1), [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); });
}

}  // namespace

Result<RandomText> RandomText::Create(const Tokenizer& tokenizer) {
  RandomText out;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (!IsWord(bytes) || tokenizer.IsSpecial(id)) continue;
    if (tokenizer.Encode(bytes) == std::vector<TokenId>{id}) out.words_.push_back(bytes);
  }
  if (out.words_.size() >= kWordsMin) return out;
  return InvalidArgument("the tokenizer's vocabulary has too few words to draw prompts from");
}

void RandomText::Append(std::string& out, int64_t tokens, std::mt19937_64& random) const {
  std::uniform_int_distribution<size_t> which(0, words_.size() - 1);
  for (int64_t i = 0; i < tokens; ++i) out += words_[which(random)];
}

}  // namespace baltoro
