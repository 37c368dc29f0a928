#include "text/detokenizer.h"

#include <utility>

#include "base/utf8.h"

namespace baltoro {

StreamDetokenizer::StreamDetokenizer(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string StreamDetokenizer::Push(TokenId id) {
  if (skip_special_ && tokenizer_->IsControl(id)) return "";
  std::string text = std::exchange(held_, "");
  text += tokenizer_->TokenBytes(id);
  size_t tail = 0;
  if (Utf8IncompleteTail(text, tail)) {
    held_ = text.substr(text.size() - tail);
    text.resize(text.size() - tail);
  }
  if (!IsValidUtf8(text)) return Utf8Sanitize(text);
  return text;
}

std::string StreamDetokenizer::Finish() {
  return Utf8Sanitize(std::exchange(held_, ""));
}

}  // namespace baltoro
