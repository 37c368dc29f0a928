#pragma once

// Cuts a template into tokens, with the white-space rules Hugging Face uses (trim_blocks and
// lstrip_blocks on, one trailing newline of the source dropped).

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace baltoro::jinja {

enum class TokenKind {
  kData,  // text between tags
  kOutputBegin,
  kOutputEnd,
  kBlockBegin,
  kBlockEnd,
  kName,
  kString,  // text: the value, escapes resolved
  kInteger,
  kFloat,
  kOperator,
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;
  int line = 0;
};

// `source` is UTF-8. Errors name the line. The last token is kEnd.
Result<std::vector<Token>> Tokenize(std::string_view source);

}  // namespace baltoro::jinja
