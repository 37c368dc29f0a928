#include "grammar/grammar_text.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/utf8.h"

namespace baltoro {

namespace {

using Expr = GrammarBuilder::Expr;
using Rule = GrammarBuilder::Rule;

constexpr int kNestingMax = 256;
constexpr int64_t kRepeatMax = 1'000'000'000;
constexpr char32_t kLastCodePoint = 0x10FFFF;

bool IsDigit(char c) {
  return c >= '0' && c <= '9';
}
bool IsNameStart(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool IsName(char c) {
  return IsNameStart(c) || IsDigit(c) || c == '-' || c == '.';
}

class TextParser {
 public:
  TextParser(GrammarBuilder& builder, std::string_view text) : b_(builder), text_(text) {}

  Result<Rule> Parse(std::string_view root) {
    if (!IsValidUtf8(text_)) return InvalidArgument("the grammar is not valid UTF-8");
    SkipSpace();
    while (at_ < text_.size()) {
      BT_RETURN_IF_ERROR(ParseRule());
    }
    for (const auto& [name, known] : rules_) {
      if (!known.defined) return ErrorAt(known.first_use, "there is no rule \"" + name + "\"");
    }
    const auto found = rules_.find(root);
    if (found == rules_.end()) {
      return ErrorAt(0, "there is no rule \"" + std::string(root) + "\" to begin with");
    }
    return found->second.rule;
  }

 private:
  struct Known {
    Rule rule{};
    size_t first_use = 0;
    bool defined = false;
  };

  Status ErrorAt(size_t place, const std::string& what) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < place && i < text_.size(); ++i) {
      if (text_[i] == '\n') {
        ++line;
        column = 1;
      } else if ((static_cast<unsigned char>(text_[i]) & 0xC0) != 0x80) {
        ++column;
      }
    }
    return InvalidArgument("line " + std::to_string(line) + ", column " + std::to_string(column) +
                           ": " + what);
  }
  Status Error(const std::string& what) const { return ErrorAt(at_, what); }

  char Peek(size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  bool Take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  void SkipSpace() {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '#') {
        while (at_ < text_.size() && text_[at_] != '\n') ++at_;
      } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
        ++at_;
      } else {
        return;
      }
    }
  }

  std::string_view TakeName() {
    const size_t begin = at_;
    while (at_ < text_.size() && IsName(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  // A name and "::=" are ahead.
  bool AtRule() {
    const size_t begin = at_;
    TakeName();
    SkipSpace();
    const bool is_rule = text_.substr(at_, 3) == "::=";
    at_ = begin;
    return is_rule;
  }

  Known& Named(std::string_view name, size_t place) {
    const auto found = rules_.find(name);
    if (found != rules_.end()) return found->second;
    const Known known{.rule = b_.DeclareRule(std::string(name)), .first_use = place};
    return rules_.emplace(std::string(name), known).first->second;
  }

  Status ParseRule() {
    const size_t place = at_;
    if (!IsNameStart(Peek())) return Error("expected the name of a rule");
    const std::string_view name = TakeName();
    SkipSpace();
    if (text_.substr(at_, 3) != "::=") return Error("expected \"::=\" after the rule's name");
    at_ += 3;
    if (const auto found = rules_.find(name); found != rules_.end() && found->second.defined) {
      return ErrorAt(place, "the rule \"" + std::string(name) + "\" is defined twice");
    }
    Named(name, place).defined = true;
    BT_ASSIGN_OR_RETURN(const Expr body, ParseChoice(0));
    if (at_ < text_.size() && !IsNameStart(Peek())) return Error("unexpected character");
    b_.DefineRule(Named(name, place).rule, body);
    return {};
  }

  Result<Expr> ParseChoice(int depth) {
    if (depth > kNestingMax) return Error("groups are nested more than 256 deep");
    std::vector<Expr> branches;
    do {
      BT_ASSIGN_OR_RETURN(const Expr branch, ParseSequence(depth));
      branches.push_back(branch);
    } while (Take('|'));
    return b_.Choice(branches);
  }

  Result<Expr> ParseSequence(int depth) {
    std::vector<Expr> parts;
    for (;;) {
      SkipSpace();
      const char c = Peek();
      if (at_ >= text_.size() || c == '|' || c == ')') break;
      if (IsNameStart(c) && AtRule()) break;
      BT_ASSIGN_OR_RETURN(const std::optional<Expr> item, ParseItem(depth));
      if (!item) break;
      BT_ASSIGN_OR_RETURN(const Expr repeated, ParseRepeats(*item));
      parts.push_back(repeated);
    }
    return b_.Sequence(parts);
  }

  Result<std::optional<Expr>> ParseItem(int depth) {
    const size_t place = at_;
    const char c = Peek();
    if (IsNameStart(c)) {
      const std::string_view name = TakeName();
      return std::optional(b_.Call(Named(name, place).rule));
    }
    switch (c) {
      case '"': {
        BT_ASSIGN_OR_RETURN(const Expr literal, ParseLiteral());
        return std::optional(literal);
      }
      case '[': {
        BT_ASSIGN_OR_RETURN(const Expr set, ParseClass());
        return std::optional(set);
      }
      case '.': {
        ++at_;
        const CodePointRange all[] = {{0, kLastCodePoint}};
        return std::optional(b_.CodePoints(all));
      }
      case '(': {
        ++at_;
        if (Peek() == '=' || Peek() == '?') return ErrorAt(place, "look-ahead is not supported");
        BT_ASSIGN_OR_RETURN(const Expr group, ParseChoice(depth + 1));
        if (!Take(')')) return ErrorAt(place, "this \"(\" is never closed");
        return std::optional(group);
      }
      case '<': {
        BT_ASSIGN_OR_RETURN(const Expr token, ParseToken());
        return std::optional(token);
      }
      default:
        return Error("unexpected character");
    }
  }

  Result<Expr> ParseToken() {
    const size_t place = at_;
    ++at_;
    if (!Take('[') || !IsDigit(Peek())) {
      return ErrorAt(place, "tokens are named by their ids: <[123]>");
    }
    BT_ASSIGN_OR_RETURN(const int64_t id, ParseNumber());
    if (!Take(']') || !Take('>')) return ErrorAt(place, "expected \"]>\" after the token's id");
    return b_.Token(static_cast<TokenId>(id));
  }

  Result<int64_t> ParseNumber() {
    const size_t place = at_;
    int64_t value = 0;
    while (IsDigit(Peek())) {
      value = 10 * value + (text_[at_++] - '0');
      if (value > kRepeatMax) return ErrorAt(place, "the number is over 1000000000");
    }
    return value;
  }

  Result<Expr> ParseRepeats(Expr item) {
    int count = 0;
    for (;; ++count) {
      SkipSpace();
      const size_t place = at_;
      int64_t min = 0, max = GrammarBuilder::kUnbounded;
      if (Take('*')) {
      } else if (Take('+')) {
        min = 1;
      } else if (Take('?')) {
        max = 1;
      } else if (Take('{')) {
        SkipSpace();
        const bool has_min = IsDigit(Peek());
        BT_ASSIGN_OR_RETURN(min, ParseNumber());
        SkipSpace();
        max = min;
        if (Take(',')) {
          SkipSpace();
          max = GrammarBuilder::kUnbounded;
          const bool has_max = IsDigit(Peek());
          if (!has_min && !has_max)
            return ErrorAt(place, "expected bounds between \"{\" and \"}\"");
          if (has_max) {
            BT_ASSIGN_OR_RETURN(max, ParseNumber());
          }
          SkipSpace();
        } else if (!has_min) {
          return ErrorAt(place, "expected bounds between \"{\" and \"}\"");
        }
        if (!Take('}')) return ErrorAt(place, "this \"{\" is never closed");
        if (max >= 0 && max < min) return ErrorAt(place, "the upper bound is below the lower one");
      } else {
        return item;
      }
      if (count >= kNestingMax) return ErrorAt(place, "repetitions are nested more than 256 deep");
      item = b_.Repeat(item, min, max);
    }
  }

  Result<Expr> ParseLiteral() {
    const size_t place = at_++;
    std::string bytes;
    while (!Take('"')) {
      if (at_ >= text_.size() || Peek() == '\n') return ErrorAt(place, "this text is never closed");
      BT_ASSIGN_OR_RETURN(const char32_t code, ParseCharacter());
      Utf8Append(bytes, code);
    }
    return b_.Literal(bytes);
  }

  // One character, perhaps escaped.
  Result<char32_t> ParseCharacter() {
    const size_t place = at_;
    char32_t code = 0;
    if (Peek() != '\\') {
      at_ += Utf8Decode(text_.substr(at_), code);
      return code;
    }
    at_ += 2;
    if (at_ > text_.size()) return ErrorAt(place, "an escape at the end");
    const char kind = text_[at_ - 1];
    switch (kind) {
      case 'n':
        return U'\n';
      case 'r':
        return U'\r';
      case 't':
        return U'\t';
      case 'b':
        return U'\b';
      case 'f':
        return U'\f';
      case 'v':
        return U'\v';
      case '0':
        return U'\0';
      case 'x':
        return ParseHex(place, 2);
      case 'u':
        return ParseHex(place, 4);
      case 'U':
        return ParseHex(place, 8);
      default:
        break;
    }
    const bool mark = kind > ' ' && kind < 0x7F && !IsNameStart(kind) && !IsDigit(kind);
    if (!mark) return ErrorAt(place, "unknown escape");
    return static_cast<char32_t>(kind);
  }

  Result<char32_t> ParseHex(size_t place, int digits) {
    uint32_t code = 0;
    for (int i = 0; i < digits; ++i) {
      const char c = Peek();
      int digit = 0;
      if (IsDigit(c)) {
        digit = c - '0';
      } else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F')) {
        digit = (c | 0x20) - 'a' + 10;
      } else {
        return ErrorAt(place, "an escape with too few digits");
      }
      code = 16 * code + static_cast<uint32_t>(digit);
      ++at_;
    }
    if (code > kLastCodePoint || (code >= 0xD800 && code <= 0xDFFF)) {
      return ErrorAt(place, "an escape that is no character");
    }
    return static_cast<char32_t>(code);
  }

  // \d, \w, \s
  bool TakeNamedClass(std::vector<CodePointRange>& ranges) {
    if (Peek() != '\\') return false;
    switch (Peek(1)) {
      case 'd':
        ranges.push_back({'0', '9'});
        break;
      case 'w':
        for (const CodePointRange range :
             {CodePointRange{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}}) {
          ranges.push_back(range);
        }
        break;
      case 's':
        ranges.push_back({'\t', '\r'});
        ranges.push_back({' ', ' '});
        break;
      default:
        return false;
    }
    at_ += 2;
    return true;
  }

  Result<Expr> ParseClass() {
    const size_t place = at_++;
    const bool inverse = Take('^');
    std::vector<CodePointRange> ranges;
    while (!Take(']')) {
      if (at_ >= text_.size()) return ErrorAt(place, "this \"[\" is never closed");
      if (TakeNamedClass(ranges)) continue;
      const size_t begin = at_;
      BT_ASSIGN_OR_RETURN(const char32_t first, ParseCharacter());
      char32_t last = first;
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < text_.size()) {
        ++at_;
        BT_ASSIGN_OR_RETURN(last, ParseCharacter());
        if (last < first) return ErrorAt(begin, "the range ends before it begins");
      }
      ranges.push_back({first, last});
    }
    return b_.CodePoints(inverse ? Inverse(std::move(ranges)) : ranges);
  }

  static std::vector<CodePointRange> Inverse(std::vector<CodePointRange> ranges) {
    std::sort(ranges.begin(), ranges.end(),
              [](const CodePointRange& a, const CodePointRange& b) { return a.first < b.first; });
    std::vector<CodePointRange> out;
    char32_t next = 0;
    for (const CodePointRange& range : ranges) {
      if (range.first > next) out.push_back({next, range.first - 1});
      next = std::max(next, static_cast<char32_t>(range.last + 1));
    }
    if (next <= kLastCodePoint) out.push_back({next, kLastCodePoint});
    return out;
  }

  GrammarBuilder& b_;
  const std::string_view text_;
  size_t at_ = 0;
  std::map<std::string, Known, std::less<>> rules_;
};

}  // namespace

Result<Rule> AddGrammarText(GrammarBuilder& builder, std::string_view text, std::string_view root) {
  return TextParser(builder, text).Parse(root);
}

}  // namespace baltoro
