#pragma once

// Tokens of one stream to text, as it grows. A character may be spread over several tokens; its
// bytes are held back until it is whole. What Push and Finish return, joined, is what
// Tokenizer::Decode returns for all tokens at once. One thread at a time.

#include <string>

#include "text/tokenizer.h"

namespace baltoro {

class StreamDetokenizer {
 public:
  // `tokenizer` must outlive this. `skip_special` drops control tokens.
  explicit StreamDetokenizer(const Tokenizer& tokenizer, bool skip_special);

  // The text that is complete now; valid UTF-8, often empty.
  std::string Push(TokenId id);

  // The rest: U+FFFD if the stream ended inside a character, else nothing. Ready for a new stream
  // afterwards.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;  // at most 3 bytes: the start of a character
};

}  // namespace baltoro
