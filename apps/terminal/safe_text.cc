#include "terminal/safe_text.h"

#include "base/utf8.h"

namespace baltoro {
namespace {

// Calls `each(character, its bytes)`; what is no UTF-8 is U+FFFD.
template <typename Each>
void ForEachCharacter(std::string_view text, const Each& each) {
  while (!text.empty()) {
    char32_t code = 0;
    const size_t length = Utf8Decode(text, code);
    if (length == 0) {
      each(char32_t{0xfffd}, std::string_view("\xef\xbf\xbd"));
    } else {
      each(code, text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

}  // namespace

bool IsControl(char32_t code) {
  return code < 0x20 || (code >= 0x7f && code < 0xa0);
}

bool IsBidiControl(char32_t code) {
  return code == 0x061c || code == 0x200e || code == 0x200f || (code >= 0x202a && code <= 0x202e) ||
         (code >= 0x2066 && code <= 0x2069);
}

std::string ForTerminal(std::string_view text, size_t bytes_max) {
  std::string out;
  bool cut = false;
  ForEachCharacter(text.substr(0, bytes_max + 4), [&](char32_t code, std::string_view bytes) {
    cut = cut || out.size() + bytes.size() > bytes_max;
    if (cut) return;
    if (IsControl(code) || IsBidiControl(code)) {
      out += ' ';
    } else {
      out += bytes;
    }
  });
  return cut || text.size() > bytes_max + 4 ? out + " ..." : out;
}

std::string WithoutControls(std::string_view text) {
  std::string out;
  ForEachCharacter(text, [&](char32_t code, std::string_view bytes) {
    if (code == '\n' || code == '\t' || !IsControl(code)) out += bytes;
  });
  return out;
}

}  // namespace baltoro
