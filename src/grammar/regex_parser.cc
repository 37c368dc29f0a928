#include "grammar/regex_parser.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/unicode_tables.h"

namespace baltoro {
namespace {

constexpr int kMaxDepth = 128;
constexpr size_t kMaxPattern = 64 << 10;
constexpr int64_t kMaxSize = 50'000;
constexpr size_t kMaxVariants = 64;

CharSet CharsOfClasses(uint8_t classes) {
  CharSet out;
  char32_t first = 0;
  bool inside = false;
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    const bool member = (CharClass(code) & classes) != 0;
    if (member && !inside) first = code;
    if (!member && inside) out.Add(first, code - 1);
    inside = member;
  }
  if (inside) out.Add(first, 0x10FFFF);
  return out;
}

const CharSet& WideDigits() {
  static const CharSet set = CharsOfClasses(kCharNumber);
  return set;
}

const CharSet& WideWords() {
  static const CharSet set = [] {
    CharSet out = CharsOfClasses(kCharHan | kCharUpper | kCharLower | kCharCaseless | kCharNumber);
    out.Add(U'_', U'_');
    return out;
  }();
  return set;
}

const CharSet& WideSpaces() {
  static const CharSet set = [] {
    CharSet out = CharsOfClasses(kCharSpace);
    out.Add(0x1C, 0x1F);
    out.Add(0xFEFF, 0xFEFF);
    return out;
  }();
  return set;
}

// The meaning of \d, \w, \s and their complements: in every dialect, and in some dialect.
void NamedClass(char32_t name, CharSet& sure, CharSet& maybe) {
  switch (name) {
    case U'd':
    case U'D':
      sure = {{U'0', U'9'}};
      maybe = WideDigits();
      break;
    case U'w':
    case U'W':
      sure = {{U'0', U'9'}, {U'A', U'Z'}, {U'_', U'_'}, {U'a', U'z'}};
      maybe = WideWords();
      break;
    default:
      sure = {{9, 13},          {U' ', U' '},     {0xA0, 0xA0},
              {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F},
              {0x3000, 0x3000}, {0x2000, 0x200A}, {0x1680, 0x1680}};
      maybe = WideSpaces();
  }
  if (name == U'D' || name == U'W' || name == U'S') {
    CharSet complement = maybe.Complement();
    maybe = sure.Complement();
    sure = std::move(complement);
  }
}

bool IsDigit(char32_t code) {
  return code >= U'0' && code <= U'9';
}

bool IsAsciiLetter(char32_t code) {
  return (code >= U'a' && code <= U'z') || (code >= U'A' && code <= U'Z');
}

int HexValue(char32_t code) {
  if (IsDigit(code)) return static_cast<int>(code - U'0');
  if (code >= U'a' && code <= U'f') return static_cast<int>(code - U'a') + 10;
  if (code >= U'A' && code <= U'F') return static_cast<int>(code - U'A') + 10;
  return -1;
}

// Why the group that starts with "(?" and these characters is refused.
std::string RefusedGroup(std::u32string_view ahead) {
  if (ahead.starts_with(U"?=") || ahead.starts_with(U"?!")) return "look-ahead";
  if (ahead.starts_with(U"?<=") || ahead.starts_with(U"?<!")) return "look-behind";
  if (ahead.starts_with(U"?P=")) return "a back reference";
  if (ahead.starts_with(U"?>")) return "an atomic group";
  return "the group \"(?\"";
}

}  // namespace

Status RegexParser::Parse(std::string_view pattern, Regex& out) {
  if (pattern.size() > kMaxPattern) {
    return InvalidArgument("a regular expression over " + std::to_string(kMaxPattern) + " bytes");
  }
  RegexParser parser(out);
  for (size_t at = 0; at < pattern.size();) {
    char32_t code = 0;
    const size_t length = Utf8Decode(pattern.substr(at), code);
    if (length == 0) return InvalidArgument("the regular expression is not valid UTF-8");
    parser.text_.push_back(code);
    at += length;
  }
  if (!parser.Alternatives(out.root_, 0)) return parser.error_;
  if (!parser.AtEnd()) {
    parser.Malformed("an unmatched \")\"", parser.at_);
    return parser.error_;
  }
  if (!parser.Split(out.root_, out.variants_)) return parser.error_;
  return Status();
}

bool RegexParser::Fail(std::string what, size_t at) {
  if (error_.ok()) {
    error_ = InvalidArgument(std::move(what) + " at character " + std::to_string(at + 1) +
                             " of the regular expression is not supported");
  }
  return false;
}

bool RegexParser::Malformed(std::string what, size_t at) {
  if (error_.ok()) {
    error_ = InvalidArgument("the regular expression is malformed: " + std::move(what) +
                             " at character " + std::to_string(at + 1));
  }
  return false;
}

bool RegexParser::Take(char32_t code) {
  if (AtEnd() || text_[at_] != code) return false;
  ++at_;
  return true;
}

bool RegexParser::Looking(std::u32string_view ahead) const {
  return std::u32string_view(text_).substr(at_).starts_with(ahead);
}

uint32_t RegexParser::Add(Regex::Node node) {
  int64_t size = node.kind == Regex::Kind::kClass ? 1 : 0;
  for (const uint32_t child : node.children) {
    size += out_.nodes_[child].size;
    node.has_anchor |= out_.nodes_[child].has_anchor;
  }
  if (node.kind == Regex::Kind::kRepeat) {
    const int64_t times = node.max == GrammarBuilder::kUnbounded ? node.min + 1 : node.max;
    // Neither factor is above a few ten thousand: each was checked when it was made.
    size = std::max<int64_t>(size, 1) * std::max<int64_t>(times, 1);
  }
  node.size = size;
  if (node.kind == Regex::Kind::kStart || node.kind == Regex::Kind::kEnd) node.has_anchor = true;
  out_.nodes_.push_back(std::move(node));
  return static_cast<uint32_t>(out_.nodes_.size() - 1);
}

uint32_t RegexParser::AddClass(Regex::ClassSet set) {
  out_.sets_.push_back(std::move(set));
  return Add({.kind = Regex::Kind::kClass, .set = static_cast<uint32_t>(out_.sets_.size() - 1)});
}

bool RegexParser::Alternatives(uint32_t& node, int depth) {
  if (depth > kMaxDepth) return Fail("a group nested deeper than 128", at_);
  std::vector<uint32_t> branches(1);
  if (!Terms(branches[0], depth)) return false;
  while (Take(U'|')) {
    branches.emplace_back();
    if (!Terms(branches.back(), depth)) return false;
  }
  node = branches.size() == 1
             ? branches[0]
             : Add({.kind = Regex::Kind::kChoice, .children = std::move(branches)});
  if (out_.nodes_[node].size > kMaxSize) return Fail("a repetition this large", at_);
  return true;
}

bool RegexParser::Terms(uint32_t& node, int depth) {
  std::vector<uint32_t> parts;
  while (!AtEnd() && Peek() != U'|' && Peek() != U')') {
    parts.emplace_back();
    if (!Atom(parts.back(), depth) || !Quantified(parts.back())) return false;
  }
  node = parts.size() == 1 ? parts[0]
                           : Add({.kind = Regex::Kind::kSequence, .children = std::move(parts)});
  if (out_.nodes_[node].size > kMaxSize) return Fail("a repetition this large", at_);
  return true;
}

bool RegexParser::Atom(uint32_t& node, int depth) {
  const size_t start = at_;
  const char32_t code = text_[at_++];
  int64_t min = 0, max = 0;
  switch (code) {
    case U'^':
    case U'$':
      node = Add({.kind = code == U'^' ? Regex::Kind::kStart : Regex::Kind::kEnd,
                  .place = static_cast<uint32_t>(start)});
      return true;
    case U'(':
      return Group(node, depth);
    case U'[':
      return Class(node);
    case U'.':
      node = AddClass({.sure = CharSet{{10, 10}, {13, 13}, {0x2028, 0x2029}}.Complement(),
                       .maybe = CharSet{{10, 10}}.Complement()});
      return true;
    case U'\\': {
      Regex::ClassSet set;
      bool single = false;
      char32_t value = 0;
      if (!Escape(false, set, single, value)) return false;
      node = AddClass(std::move(set));
      return true;
    }
    case U'*':
    case U'+':
    case U'?':
      return Malformed("a quantifier without anything to repeat", start);
    case U'{':
      at_ = start;
      if (Bounds(min, max)) return Malformed("a quantifier without anything to repeat", start);
      if (!error_.ok()) return false;
      at_ = start + 1;
      break;
    default:
      break;
  }
  node = AddClass({.sure = {{code, code}}, .maybe = {{code, code}}});
  return true;
}

bool RegexParser::Group(uint32_t& node, int depth) {
  const size_t start = at_ - 1;
  if (Peek() == U'?') {
    const auto ahead = std::u32string_view(text_).substr(at_);
    const size_t name = ahead.starts_with(U"?P<") ? 3 : 2;
    if (ahead.starts_with(U"?:")) {
      at_ += 2;
    } else if (ahead.size() > name && (name == 3 || ahead[1] == U'<') && ahead[name] != U'=' &&
               ahead[name] != U'!') {
      at_ += name;
      while (!AtEnd() && Peek() != U'>') ++at_;
      if (!Take(U'>')) return Malformed("a group name without end", start);
    } else {
      return Fail(RefusedGroup(ahead), start);
    }
  }
  if (!Alternatives(node, depth + 1)) return false;
  if (!Take(U')')) return Malformed("a \"(\" without its \")\"", start);
  return true;
}

// Reads {m}, {m,} or {m,n}; false without error if there is none, and the place is kept.
bool RegexParser::Bounds(int64_t& min, int64_t& max) {
  const size_t start = at_;
  const auto number = [&](int64_t& value) {
    const size_t first = at_;
    value = 0;
    while (IsDigit(Peek()) && !AtEnd()) {
      value = std::min<int64_t>(value * 10 + (text_[at_++] - U'0'), kMaxSize + 1);
    }
    return at_ > first;
  };
  if (!Take(U'{') || !number(min)) {
    at_ = start;
    return false;
  }
  max = min;
  if (Take(U',') && !number(max)) max = GrammarBuilder::kUnbounded;
  if (!Take(U'}')) {
    at_ = start;
    return false;
  }
  if (min > kMaxSize || max > kMaxSize) return Fail("a repetition this large", start);
  if (max != GrammarBuilder::kUnbounded && max < min) {
    return Malformed("a repetition whose bounds are the wrong way round", start);
  }
  return true;
}

bool RegexParser::Quantified(uint32_t& node) {
  const size_t start = at_;
  int64_t min = 0, max = GrammarBuilder::kUnbounded;
  if (Take(U'*')) {
  } else if (Take(U'+')) {
    min = 1;
  } else if (Take(U'?')) {
    max = 1;
  } else if (!Bounds(min, max)) {
    return error_.ok();
  }
  Take(U'?');  // lazy: the same language
  if (Peek() == U'+' || Peek() == U'*' || Peek() == U'?') {
    return Fail("a quantifier on a quantifier", at_);
  }
  const Regex::Kind kind = out_.nodes_[node].kind;
  if (kind == Regex::Kind::kStart || kind == Regex::Kind::kEnd) {
    return Fail("a quantifier on an anchor", start);
  }
  node = Add({.kind = Regex::Kind::kRepeat, .children = {node}, .min = min, .max = max});
  if (out_.nodes_[node].size > kMaxSize) return Fail("a repetition this large", start);
  return true;
}

bool RegexParser::Class(uint32_t& node) {
  const size_t start = at_ - 1;
  const bool negated = Take(U'^');
  Regex::ClassSet set;
  // Dialects disagree on what "[]" and "[^]" are.
  if (Peek() == U']') return Fail("an empty class", start);
  while (!Take(U']')) {
    if (AtEnd()) return Malformed("a \"[\" without its \"]\"", start);
    const size_t item = at_;
    bool single = false;
    char32_t first = 0;
    Regex::ClassSet one;
    if (!ClassItem(one, single, first)) return false;
    if (single && Peek() == U'-' && at_ + 1 < text_.size() && Peek(1) != U']') {
      const size_t dash = at_++;
      Regex::ClassSet other;
      bool ends = false;
      char32_t last = 0;
      if (!ClassItem(other, ends, last)) return false;
      if (ends) {
        if (last < first) return Malformed("a range whose ends are the wrong way round", item);
        one.sure.Add(first, last);
        one.maybe.Add(first, last);
      } else {
        at_ = dash;  // as in [a-\d]: the dash is itself
      }
    }
    set.sure.Add(one.sure);
    set.maybe.Add(one.maybe);
  }
  if (negated) {
    CharSet sure = set.maybe.Complement();
    set.maybe = set.sure.Complement();
    set.sure = std::move(sure);
  }
  node = AddClass(std::move(set));
  return true;
}

bool RegexParser::ClassItem(Regex::ClassSet& set, bool& single, char32_t& code) {
  if (AtEnd()) return Malformed("a \"[\" without its \"]\"", at_);
  code = text_[at_++];
  if (code == U'\\') return Escape(true, set, single, code);
  single = true;
  set = {.sure = {{code, code}}, .maybe = {{code, code}}};
  return true;
}

bool RegexParser::Hex(size_t digits, char32_t& code) {
  code = 0;
  for (size_t i = 0; i < digits; ++i) {
    const int value = AtEnd() ? -1 : HexValue(Peek());
    if (value < 0) return Malformed("an escape without its hexadecimal digits", at_);
    code = code * 16 + static_cast<char32_t>(value);
    ++at_;
  }
  return true;
}

// After "\u": XXXX, a pair of surrogates, or {X...}.
bool RegexParser::CodeEscape(char32_t& code) {
  const size_t start = at_ - 2;
  if (Take(U'{')) {
    code = 0;
    size_t digits = 0;
    for (; !AtEnd() && HexValue(Peek()) >= 0 && digits < 6; ++digits, ++at_) {
      code = code * 16 + static_cast<char32_t>(HexValue(Peek()));
    }
    if (digits == 0 || !Take(U'}') || code > 0x10FFFF) return Fail("this escape", start);
  } else {
    if (!Hex(4, code)) return false;
    if (code >= 0xD800 && code <= 0xDBFF && Looking(U"\\u")) {
      at_ += 2;
      char32_t low = 0;
      if (!Hex(4, low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return Fail("half a surrogate pair", start);
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    }
  }
  if (code >= 0xD800 && code <= 0xDFFF) return Fail("half a surrogate pair", start);
  return true;
}

bool RegexParser::Escape(bool in_class, Regex::ClassSet& set, bool& single, char32_t& code) {
  const size_t start = at_ - 1;
  if (AtEnd()) return Malformed("a \"\\\" with nothing after it", start);
  const char32_t name = text_[at_++];
  single = true;
  switch (name) {
    case U'd':
    case U'D':
    case U'w':
    case U'W':
    case U's':
    case U'S':
      single = false;
      NamedClass(name, set.sure, set.maybe);
      return true;
    case U't':
      code = 9;
      break;
    case U'n':
      code = 10;
      break;
    case U'v':
      code = 11;
      break;
    case U'f':
      code = 12;
      break;
    case U'r':
      code = 13;
      break;
    case U'0':
      if (IsDigit(Peek()) && !AtEnd()) return Fail("an octal escape", start);
      code = 0;
      break;
    case U'x':
      if (!Hex(2, code)) return false;
      break;
    case U'u':
      if (!CodeEscape(code)) return false;
      break;
    case U'c':
      if (AtEnd() || !IsAsciiLetter(Peek())) return Fail("this escape", start);
      code = text_[at_++] % 32;
      break;
    case U'b':
      if (!in_class) return Fail("a word boundary (\\b)", start);
      code = 8;
      break;
    case U'B':
      return Fail("a word boundary (\\B)", start);
    case U'p':
    case U'P':
      return Fail("a character property (\\p)", start);
    case U'k':
      return Fail("a back reference", start);
    default:
      if (IsDigit(name)) return Fail("a back reference", start);
      if (IsAsciiLetter(name)) {
        return Fail(std::string("the escape \\") + static_cast<char>(name), start);
      }
      code = name;
  }
  set = {.sure = {{code, code}}, .maybe = {{code, code}}};
  return true;
}

size_t RegexParser::AnchorPlace(uint32_t node) const {
  const auto& nodes = out_.nodes_;
  while (nodes[node].kind != Regex::Kind::kStart && nodes[node].kind != Regex::Kind::kEnd) {
    node = *std::find_if(nodes[node].children.begin(), nodes[node].children.end(),
                         [&](uint32_t child) { return nodes[child].has_anchor; });
  }
  return nodes[node].place;
}

bool RegexParser::Split(uint32_t node, std::vector<Regex::Variant>& out) {
  // By index: nodes_ does not grow here, but a reference would read worse.
  const Regex::Node& here = out_.nodes_[node];
  if (out.size() > kMaxVariants)
    return Fail("this many alternatives with anchors", AnchorPlace(node));
  if (!here.has_anchor) {
    out.push_back({.parts = {node}});
    return true;
  }
  switch (here.kind) {
    case Regex::Kind::kStart:
      out.push_back({.at_start = true});
      return true;
    case Regex::Kind::kEnd:
      out.push_back({.at_end = true});
      return true;
    case Regex::Kind::kChoice:
      for (const uint32_t child : here.children) {
        if (!Split(child, out)) return false;
      }
      return true;
    case Regex::Kind::kRepeat:
      if (here.max != 1) return Fail("an anchor inside a repetition", AnchorPlace(node));
      if (here.min == 0) out.emplace_back();
      return Split(here.children[0], out);
    default:
      return SplitSequence(node, out);
  }
}

bool RegexParser::SplitSequence(uint32_t node, std::vector<Regex::Variant>& out) {
  std::vector<Regex::Variant> so_far(1);
  for (const uint32_t child : out_.nodes_[node].children) {
    std::vector<Regex::Variant> next, joined;
    if (!Split(child, next)) return false;
    if (so_far.size() * next.size() > kMaxVariants) {
      return Fail("this many alternatives with anchors", AnchorPlace(node));
    }
    for (const Regex::Variant& left : so_far) {
      for (const Regex::Variant& right : next) {
        if ((right.at_start && !left.parts.empty()) || (left.at_end && !right.parts.empty())) {
          return Fail("an anchor in the middle", AnchorPlace(node));
        }
        Regex::Variant both = left;
        both.at_start |= right.at_start;
        both.at_end |= right.at_end;
        both.parts.insert(both.parts.end(), right.parts.begin(), right.parts.end());
        joined.push_back(std::move(both));
      }
    }
    so_far = std::move(joined);
  }
  out.insert(out.end(), so_far.begin(), so_far.end());
  return true;
}

}  // namespace baltoro
