#include "text/python_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <iterator>

#include "base/utf8.h"

namespace baltoro {
namespace {

struct CaseRun {
  char32_t first, last, step;
  int32_t delta;
};
struct CaseSpecial {
  char32_t code;
  char32_t becomes[3];
};
struct CodeRange {
  char32_t first, last;
};

#include "text/python_text_tables.inc"

template <size_t N, size_t M>
bool AppendMapped(std::string& out,
                  char32_t code,
                  const CaseRun (&runs)[N],
                  const CaseSpecial (&specials)[M]) {
  const auto* run = std::upper_bound(std::begin(runs), std::end(runs), code,
                                     [](char32_t c, const CaseRun& r) { return c < r.first; });
  if (run != std::begin(runs)) {
    --run;
    if (code <= run->last && (code - run->first) % run->step == 0) {
      Utf8Append(out, static_cast<char32_t>(static_cast<int32_t>(code) + run->delta));
      return true;
    }
  }
  for (const CaseSpecial& special : specials) {
    if (special.code != code) continue;
    for (const char32_t c : special.becomes) {
      if (c != 0) Utf8Append(out, c);
    }
    return true;
  }
  return false;
}

bool IsPrintable(char32_t code) {
  if (code < 0x7F) return code >= 0x20;
  const auto* range = std::upper_bound(std::begin(kNotPrintable), std::end(kNotPrintable), code,
                                       [](char32_t c, const CodeRange& r) { return c < r.first; });
  return range == std::begin(kNotPrintable) || code > std::prev(range)->last;
}

void AppendHex(std::string& out, char32_t code, int digits) {
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    out.push_back("0123456789abcdef"[code >> shift & 15]);
  }
}

}  // namespace

bool IsPythonSpace(char32_t code) {
  return (code >= 9 && code <= 13) || (code >= 0x1C && code <= 0x20) || code == 0x85 ||
         code == 0xA0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 ||
         code == 0x2029 || code == 0x202F || code == 0x205F || code == 0x3000;
}

size_t LeadingSpaceLength(std::string_view text) {
  char32_t code = 0;
  const size_t length = Utf8Decode(text, code);
  return length > 0 && IsPythonSpace(code) ? length : 0;
}

size_t LastCharacterStart(std::string_view text) {
  for (size_t back = 1; back <= 4 && back <= text.size(); ++back) {
    if (Utf8ValidLength(text.substr(text.size() - back)) == back) return text.size() - back;
  }
  return text.size() - 1;
}

size_t TrailingSpaceLength(std::string_view text) {
  if (text.empty()) return 0;
  return LeadingSpaceLength(text.substr(LastCharacterStart(text)));
}

size_t CharacterLength(std::string_view text) {
  return std::max<size_t>(1, Utf8ValidLength(text));
}

size_t CharacterCount(std::string_view text) {
  size_t count = 0;
  for (; !text.empty(); ++count) text.remove_prefix(CharacterLength(text));
  return count;
}

void AppendCased(std::string& out, char32_t code, LetterCase to) {
  if (code < 0x80) {
    const bool lower = code >= 'a' && code <= 'z';
    const bool upper = code >= 'A' && code <= 'Z';
    const bool flip = to == LetterCase::kLower ? upper : lower;
    out.push_back(static_cast<char>(flip ? code ^ 0x20 : code));
    return;
  }
  bool mapped = false;
  if (to == LetterCase::kTitle) mapped = AppendMapped(out, code, kTitleRuns, kTitleSpecials);
  if (!mapped && to == LetterCase::kLower) {
    mapped = AppendMapped(out, code, kLowerRuns, kLowerSpecials);
  } else if (!mapped) {
    mapped = AppendMapped(out, code, kUpperRuns, kUpperSpecials);
  }
  if (!mapped) Utf8Append(out, code);
}

bool IsCased(char32_t code) {
  if (code < 0x80) return (code | 0x20) >= 'a' && (code | 0x20) <= 'z';
  std::string ignored;
  return AppendMapped(ignored, code, kLowerRuns, kLowerSpecials) ||
         AppendMapped(ignored, code, kUpperRuns, kUpperSpecials);
}

std::string PythonFloat(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  const double magnitude = std::fabs(value);
  const bool fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  const auto written =
      std::to_chars(buffer, buffer + sizeof(buffer), value,
                    fixed ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, written.ptr);
  if (fixed && text.find('.') == std::string::npos) text += ".0";
  return text;
}

void AppendPythonRepr(std::string& out, std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  out.push_back(quote);
  while (!text.empty()) {
    char32_t code = 0;
    size_t length = Utf8Decode(text, code);
    if (length == 0) {  // Python would hold such a byte as a lone surrogate and print it so
      code = 0xDC00 | static_cast<unsigned char>(text[0]);
      length = 1;
    }
    if (code == static_cast<unsigned char>(quote) || code == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(code));
    } else if (code == '\n') {
      out += "\\n";
    } else if (code == '\r') {
      out += "\\r";
    } else if (code == '\t') {
      out += "\\t";
    } else if (IsPrintable(code)) {
      out.append(text.substr(0, length));
    } else if (code < 0x100) {
      out += "\\x";
      AppendHex(out, code, 2);
    } else if (code < 0x10000) {
      out += "\\u";
      AppendHex(out, code, 4);
    } else {
      out += "\\U";
      AppendHex(out, code, 8);
    }
    text.remove_prefix(length);
  }
  out.push_back(quote);
}

void AppendPythonJson(std::string& out, std::string_view text, bool ensure_ascii) {
  out.push_back('"');
  const auto escape = [&](char32_t unit) {
    out += "\\u";
    AppendHex(out, unit, 4);
  };
  while (!text.empty()) {
    char32_t code = 0;
    size_t length = Utf8Decode(text, code);
    if (length == 0) {
      code = 0xFFFD;
      length = 1;
      if (!ensure_ascii) out += "\xEF\xBF\xBD";
    } else if (code == '"' || code == '\\') {
      out.push_back('\\');
      out.push_back(static_cast<char>(code));
    } else if (code < 0x20) {
      static constexpr char kShort[] = "btn-fr";  // \b is 8, \r is 13; 11 has no short form
      if (code >= 8 && code <= 13 && code != 11) {
        out.push_back('\\');
        out.push_back(kShort[code - 8]);
      } else {
        escape(code);
      }
    } else if (code < 0x7F || !ensure_ascii) {
      out.append(text.substr(0, length));
    }
    if (ensure_ascii && code >= 0x7F) {
      if (code < 0x10000) {
        escape(code);
      } else {
        escape(0xD800 + ((code - 0x10000) >> 10));
        escape(0xDC00 + ((code - 0x10000) & 0x3FF));
      }
    }
    text.remove_prefix(length);
  }
  out.push_back('"');
}

}  // namespace baltoro
