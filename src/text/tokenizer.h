#pragma once

// Text to token ids and back, for the tiktoken vocabularies of the Kimi models. Immutable after
// Load: any thread may call any const function at any time.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "text/bpe.h"
#include "text/segment.h"
#include "text/special_matcher.h"

namespace baltoro {

class Tokenizer {
 public:
  // Reads `model_dir`/tiktoken.model and the added tokens of `model_dir`/tokenizer_config.json
  // (key added_tokens_decoder); where the file or the key is absent, the names of K2.5 hold. The
  // 256 ids after the ordinary tokens are always added tokens: one without a name is called
  // <|reserved_token_ID|>. Errors name the file, and the line or the key.
  static Result<std::unique_ptr<Tokenizer>> Load(const std::string& model_dir);

  // For a model whose directory has none: texts have no tokens, tokens no text.
  static std::unique_ptr<Tokenizer> WithoutVocabulary();
  bool empty() const { return vocab_size() == 0; }

  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Ordinary text: the names of added tokens in it are text like any other. Any bytes are taken;
  // Decode gives them back. Texts are under 4 GiB. Nothing is put in front.
  std::vector<TokenId> Encode(std::string_view text) const;

  // A prompt. The name of an added token becomes that token only where it lies wholly inside one
  // segment with special_allowed. All text between two such tokens, across segments, is encoded as
  // one run.
  std::vector<TokenId> EncodeSegments(std::span<const TextSegment> segments) const;

  // As one segment with special_allowed.
  std::vector<TokenId> EncodeWithSpecials(std::string_view text) const;

  // The bytes of a token, of an added one its name; empty for an id that is none. They may be a
  // part of a character. Valid as long as the tokenizer.
  std::string_view TokenBytes(TokenId id) const;

  // An added token, of whatever kind.
  bool IsSpecial(TokenId id) const;

  // An added token marked "special" in the file, which skip_special_tokens drops. Marks of thinking
  // and of tool calls, and reserved tokens, are added tokens but not these.
  bool IsControl(TokenId id) const;

  // The id of an added token by its name, such as "<|im_end|>".
  std::optional<TokenId> SpecialId(std::string_view name) const;

  // One more than the highest id.
  int32_t vocab_size() const { return vocabulary_.size() + static_cast<int32_t>(added_.size()); }

  // The text of all tokens; each maximal invalid part of UTF-8 becomes U+FFFD. `skip_special` drops
  // control tokens. Unknown ids give nothing.
  std::string Decode(std::span<const TokenId> ids, bool skip_special) const;

 private:
  struct Added {
    std::string name;  // empty: a gap among the ids
    bool control = false;
  };

  Tokenizer(BpeVocabulary vocabulary, std::vector<Added> added);
  static Result<std::vector<Added>> ReadAdded(const std::string& path, TokenId first_id);
  void AppendText(std::string_view text,
                  BpeVocabulary::Scratch& scratch,
                  std::vector<TokenId>& out) const;
  const Added* FindAdded(TokenId id) const;

  BpeVocabulary vocabulary_;
  std::vector<Added> added_;                                 // ids vocabulary_.size() and up
  std::unordered_map<std::string_view, TokenId> added_ids_;  // keys lie in added_
  SpecialMatcher matcher_;
};

}  // namespace baltoro
