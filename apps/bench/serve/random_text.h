#pragma once

// Drawn text of an exact number of tokens. Its words are the vocabulary's own tokens of a blank and
// letters: the tokenizer splits text in front of such blanks, so that any sequence of them is read
// back as the tokens that it was made of.

#include <random>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace baltoro {

class RandomText {
 public:
  // `tokenizer` must outlive the object. An error: the vocabulary has hardly any words.
  static Result<RandomText> Create(const Tokenizer& tokenizer);

  // Appends `tokens` words, each drawn from all of them.
  void Append(std::string& out, int64_t tokens, std::mt19937_64& random) const;
  size_t words() const { return words_.size(); }

 private:
  std::vector<std::string_view> words_;
};

}  // namespace baltoro
