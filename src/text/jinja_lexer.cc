#include "text/jinja_lexer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/python_text.h"

namespace baltoro::jinja {
namespace {

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNameByte(char c) {
  return IsDigit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
         static_cast<unsigned char>(c) >= 0x80;
}

// \r\n and \r become \n; then one newline at the end is dropped.
std::string NormalizeNewlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out.push_back(source[i]);
      continue;
    }
    out.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {}

  Result<std::vector<Token>> Run() {
    while (at_ < source_.size()) BT_RETURN_IF_ERROR(Next());
    Add(TokenKind::kEnd, {});
    return std::move(tokens_);
  }

 private:
  std::string_view Rest(size_t offset = 0) const { return source_.substr(at_ + offset); }
  bool Starts(std::string_view what) const { return Rest().starts_with(what); }

  Status Error(std::string_view what) const {
    return InvalidArgument(fmt::format("line {}: {}", line_, what));
  }

  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Advance(size_t bytes) {
    const std::string_view passed = Rest().substr(0, bytes);
    line_ += static_cast<int>(std::count(passed.begin(), passed.end(), '\n'));
    at_ += passed.size();
  }

  void SkipSpace() {
    while (const size_t length = LeadingSpaceLength(Rest())) Advance(length);
  }

  // Text up to the next tag, the tag's opening, and its inside.
  Status Next() {
    size_t tag = at_;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 >= source_.size()) {
        Add(TokenKind::kData, std::string(Rest()));
        at_ = source_.size();
        return {};
      }
      const char kind = source_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
    }
    const char kind = source_[tag + 1];
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    AddData(source_.substr(at_, tag - at_), sign, /*block=*/kind != '{');
    Advance(tag - at_);
    if (kind == '#') return Comment();
    if (kind == '%') {
      if (const size_t length = RawBeginLength()) {
        Advance(length);
        line_starting_ = source_[at_ - 1] == '\n';
        return Raw();
      }
    }
    Add(kind == '%' ? TokenKind::kBlockBegin : TokenKind::kOutputBegin, {});
    Advance(sign == '-' || sign == '+' ? 3 : 2);
    return Inside(kind == '%');
  }

  // Emits the text before a tag, less what the tag strips: with '-' all white space, otherwise,
  // before a block or comment that is first on its line, the line's indentation.
  void AddData(std::string_view text, char sign, bool block) {
    if (sign == '-') {
      while (const size_t length = TrailingSpaceLength(text)) text.remove_suffix(length);
    } else if (sign != '+' && block) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == std::string_view::npos ? 0 : newline + 1;
      if (line_start > 0 || line_starting_) {
        std::string_view indent = text.substr(line_start);
        while (const size_t length = LeadingSpaceLength(indent)) indent.remove_prefix(length);
        if (indent.empty()) text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) Add(TokenKind::kData, std::string(text));
  }

  // Takes the end of a tag if it is here: `close` is "%}", "}}" or "#}".
  bool TakeEnd(std::string_view close) {
    const bool block = close != "}}";
    const size_t begin = at_;
    if (Starts("-") && Rest(1).starts_with(close)) {
      Advance(3);
      SkipSpace();
    } else if (block && Starts("+") && Rest(1).starts_with(close)) {
      Advance(3);
    } else if (Starts(close)) {
      Advance(2);
      if (block && Starts("\n")) Advance(1);  // trim_blocks
    } else {
      return false;
    }
    line_starting_ = at_ > begin && source_[at_ - 1] == '\n';
    return true;
  }

  Status Comment() {
    const int begin = line_;
    Advance(2);
    while (!TakeEnd("#}")) {
      if (at_ >= source_.size()) {
        line_ = begin;
        return Error("comment without end");
      }
      Advance(1);
    }
    return {};
  }

  // Bytes of "{% raw %}" here, or 0.
  size_t RawBeginLength() const {
    std::string_view rest = Rest(2);
    const auto skip_space = [&rest] {
      while (const size_t length = LeadingSpaceLength(rest)) rest.remove_prefix(length);
    };
    if (rest.starts_with('-') || rest.starts_with('+')) rest.remove_prefix(1);
    skip_space();
    if (!rest.starts_with("raw")) return 0;
    rest.remove_prefix(3);
    skip_space();
    if (rest.starts_with("-%}")) {
      rest.remove_prefix(3);
      skip_space();
    } else if (rest.starts_with("%}")) {
      rest.remove_prefix(2);
    } else {
      return 0;
    }
    return source_.size() - at_ - rest.size();
  }

  Status Raw() {
    const size_t begin = at_;
    for (size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
         tag = source_.find("{%", tag + 1)) {
      size_t inside = tag + 2;
      const char sign = inside < source_.size() ? source_[inside] : '\0';
      if (sign == '-' || sign == '+') ++inside;
      while (const size_t length = LeadingSpaceLength(source_.substr(inside))) inside += length;
      if (!source_.substr(inside).starts_with("endraw")) continue;
      inside += 6;
      while (const size_t length = LeadingSpaceLength(source_.substr(inside))) inside += length;
      const std::string_view rest = source_.substr(inside);
      if (!rest.starts_with("%}") && !rest.starts_with("-%}") && !rest.starts_with("+%}")) continue;
      AddData(source_.substr(begin, tag - begin), sign, /*block=*/true);
      Advance(inside - at_);
      TakeEnd("%}");
      return {};
    }
    return Error("raw without endraw");
  }

  Status Inside(bool block) {
    const int begin = line_;
    std::string open;  // brackets not yet closed: a }} inside a dict does not end the tag
    for (;;) {
      if (open.empty() && TakeEnd(block ? "%}" : "}}")) {
        Add(block ? TokenKind::kBlockEnd : TokenKind::kOutputEnd, {});
        return {};
      }
      if (at_ >= source_.size()) {
        line_ = begin;
        return Error("tag without end");
      }
      if (const size_t length = LeadingSpaceLength(Rest())) {
        Advance(length);
        continue;
      }
      const char c = source_[at_];
      if (IsDigit(c)) {
        BT_RETURN_IF_ERROR(Number());
      } else if (IsNameByte(c)) {
        size_t length = 1;
        while (at_ + length < source_.size() && IsNameByte(source_[at_ + length])) ++length;
        Add(TokenKind::kName, std::string(Rest().substr(0, length)));
        Advance(length);
      } else if (c == '"' || c == '\'') {
        BT_RETURN_IF_ERROR(String(c));
      } else {
        BT_RETURN_IF_ERROR(Operator(open));
      }
    }
  }

  Status Operator(std::string& open) {
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    for (const std::string_view two : kTwo) {
      if (!Starts(two)) continue;
      Add(TokenKind::kOperator, std::string(two));
      Advance(2);
      return {};
    }
    const char c = source_[at_];
    if (std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos) {
      return Error(fmt::format("unexpected byte 0x{:02x}", static_cast<unsigned char>(c)));
    }
    if (c == '(') open.push_back(')');
    if (c == '[') open.push_back(']');
    if (c == '{') open.push_back('}');
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) return Error(fmt::format("unexpected '{}'", c));
      open.pop_back();
    }
    Add(TokenKind::kOperator, std::string(1, c));
    Advance(1);
    return {};
  }

  // Length of digits (with single underscores between them) at `offset` from here.
  size_t DigitsLength(size_t offset) const {
    const std::string_view rest = Rest(std::min(offset, source_.size() - at_));
    size_t length = 0;
    while (length < rest.size() && (IsDigit(rest[length]) ||
                                    (length > 0 && rest[length] == '_' && rest[length - 1] != '_' &&
                                     length + 1 < rest.size() && IsDigit(rest[length + 1])))) {
      ++length;
    }
    return length;
  }

  Status Number() {
    const auto at = [this](size_t offset) {
      return at_ + offset < source_.size() ? source_[at_ + offset] : '\0';
    };
    if (at(0) == '0' && std::string_view("xXoObB").find(at(1)) != std::string_view::npos &&
        at(1) != '\0') {
      return Error("only decimal numbers are supported");
    }
    size_t length = DigitsLength(0);
    bool real = false;
    if (at_ == 0 || source_[at_ - 1] != '.') {  // after a dot it is a subscript: a.0.1
      if (at(length) == '.' && IsDigit(at(length + 1))) {
        real = true;
        length += 1 + DigitsLength(length + 1);
      }
      if (at(length) == 'e' || at(length) == 'E') {
        const size_t sign = at(length + 1) == '+' || at(length + 1) == '-' ? 1 : 0;
        if (IsDigit(at(length + 1 + sign))) {
          real = true;
          length += 1 + sign + DigitsLength(length + 1 + sign);
        }
      }
    }
    std::string text(Rest().substr(0, length));
    std::erase(text, '_');
    if (!real && text.size() > 1 && text[0] == '0' &&
        text.find_first_not_of('0') != std::string::npos) {
      return Error("a number may not start with 0");
    }
    Add(real ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    Advance(length);
    return {};
  }

  Status String(char quote) {
    std::string value;
    size_t i = at_ + 1;
    for (;; ++i) {
      if (i >= source_.size()) return Error("string without end");
      const char c = source_[i];
      if (c == quote) break;
      if (c != '\\') {
        value.push_back(c);
        continue;
      }
      if (++i >= source_.size()) return Error("string without end");
      BT_RETURN_IF_ERROR(Escape(i, value));
    }
    Add(TokenKind::kString, std::move(value));
    Advance(i + 1 - at_);
    return {};
  }

  // `i` is at the byte after the backslash, and on return at the escape's last byte.
  Status Escape(size_t& i, std::string& value) const {
    static constexpr std::string_view kFrom = "ntrabfv\\'\"", kTo = "\n\t\r\a\b\f\v\\'\"";
    const char c = source_[i];
    if (const size_t found = kFrom.find(c); found != std::string_view::npos) {
      value.push_back(kTo[found]);
      return {};
    }
    if (c == '\n') return {};
    const size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    char32_t code = 0;
    if (digits > 0) {
      for (size_t d = 0; d < digits; ++d) {
        const char h = ++i < source_.size() ? source_[i] : '\0';
        const char low = static_cast<char>(h | 0x20);
        if (!IsDigit(h) && !(low >= 'a' && low <= 'f')) return Error("bad escape in a string");
        code = code * 16 + static_cast<char32_t>(IsDigit(h) ? h - '0' : low - 'a' + 10);
      }
    } else if (c >= '0' && c <= '7') {
      code = static_cast<char32_t>(c - '0');
      for (int d = 0; d < 2 && i + 1 < source_.size(); ++d) {
        if (source_[i + 1] < '0' || source_[i + 1] > '7') break;
        code = code * 8 + static_cast<char32_t>(source_[++i] - '0');
      }
    } else if (c == 'N') {
      return Error("\\N{...} is not supported");
    } else {
      value.push_back('\\');
      value.push_back(c);
      return {};
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) {
      return Error("an escape names no character");
    }
    Utf8Append(value, code);
    return {};
  }

  std::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;  // what precedes `at_` ended a line
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(std::string_view source) {
  if (!IsValidUtf8(source)) return InvalidArgument("the template is not UTF-8");
  const std::string normalized = NormalizeNewlines(source);
  return Lexer(normalized).Run();
}

}  // namespace baltoro::jinja
