// Filters on text, and the methods of str. All of them carry trust along with the bytes.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/utf8.h"
#include "text/jinja_builtins.h"
#include "text/jinja_interpreter.h"
#include "text/python_text.h"

namespace baltoro::jinja {

Text WithCase(const Text& text, LetterCase to) {
  constexpr char32_t kSigma = 0x3A3, kFinalSigma = 0x3C2;
  const std::string_view bytes = text.bytes();
  Text out;
  std::string piece;
  bool after_cased = false;
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = Utf8Decode(bytes.substr(at), code);
    if (length == 0) {
      out.Append(text, at, at + 1);
      ++at;
      after_cased = false;
      continue;
    }
    const LetterCase here = to == LetterCase::kTitle && after_cased ? LetterCase::kLower : to;
    piece.clear();
    char32_t next = 0;
    if (code == kSigma && here == LetterCase::kLower && after_cased &&
        (Utf8Decode(bytes.substr(at + length), next) == 0 || !IsCased(next))) {
      Utf8Append(piece, kFinalSigma);
    } else {
      AppendCased(piece, code, here);
    }
    out.Append(piece, text.TrustedAt(at));
    after_cased = IsCased(code);
    at += length;
  }
  return out;
}

namespace {

struct Bounds {
  size_t begin, end;
};

// What str.strip(chars) keeps; without chars, white space is stripped.
Bounds Stripped(std::string_view bytes, const Text* chars, bool left, bool right) {
  const auto strips = [&](std::string_view character) {
    if (chars == nullptr) return LeadingSpaceLength(character) == character.size();
    std::string_view set = chars->bytes();
    while (!set.empty()) {
      const size_t length = CharacterLength(set);
      if (set.substr(0, length) == character) return true;
      set.remove_prefix(length);
    }
    return false;
  };
  Bounds kept{0, bytes.size()};
  while (left && kept.begin < kept.end) {
    const size_t length = CharacterLength(bytes.substr(kept.begin, kept.end - kept.begin));
    if (!strips(bytes.substr(kept.begin, length))) break;
    kept.begin += length;
  }
  while (right && kept.begin < kept.end) {
    const std::string_view rest = bytes.substr(kept.begin, kept.end - kept.begin);
    const size_t start = LastCharacterStart(rest);
    if (!strips(rest.substr(start))) break;
    kept.end = kept.begin + start;
  }
  return kept;
}

template <bool kLeft, bool kRight>
Result<Value> Strip(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"chars"}, a));
  BT_ASSIGN_OR_RETURN(const Text text, in.ToText(self));
  const Text* chars = nullptr;
  if (a[0] && !a[0]->is_none()) {
    BT_ASSIGN_OR_RETURN(chars, TextArgument(a[0], "chars"));
    // Each character is looked up in the whole set.
    BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(chars->size() * text.size() / 256)));
  }
  const Bounds kept = Stripped(text.bytes(), chars, kLeft, kRight);
  return in.NewString(text.Substring(kept.begin, kept.end));
}

template <LetterCase kCase>
Result<Value> ChangeCase(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_ASSIGN_OR_RETURN(const Text text, in.ToText(self));
  BT_RETURN_IF_ERROR(in.ChargeBytes(text.size() * 4));
  return in.NewString(WithCase(text, kCase));
}

// The first character in one case, the others lower. `first_title` as str.capitalize().
Text FirstAndRest(const Text& text, LetterCase first) {
  if (text.empty()) return {};
  const size_t length = CharacterLength(text.bytes());
  Text out = WithCase(text.Substring(0, length), first);
  out.Append(WithCase(text.Substring(length, text.size()), LetterCase::kLower));
  return out;
}

Result<Value> Capitalize(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_ASSIGN_OR_RETURN(const Text text, in.ToText(self));
  BT_RETURN_IF_ERROR(in.ChargeBytes(text.size() * 4));
  return in.NewString(FirstAndRest(text, LetterCase::kTitle));
}

// The filter title, which unlike str.title() begins words only after white space and -({[<.
Result<Value> TitleFilter(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  BT_ASSIGN_OR_RETURN(const Text text, in.ToText(self));
  BT_RETURN_IF_ERROR(in.ChargeBytes(text.size() * 4));
  const std::string_view bytes = text.bytes();
  const auto divides = [&](size_t at) {
    return LeadingSpaceLength(bytes.substr(at)) > 0 ||
           std::string_view("-({[<").find(bytes[at]) != std::string_view::npos;
  };
  Text out;
  for (size_t at = 0; at < bytes.size();) {
    size_t end = at;
    const bool divider = divides(at);
    while (end < bytes.size() && divides(end) == divider) {
      end += CharacterLength(bytes.substr(end));
    }
    const Text piece = text.Substring(at, end);
    out.Append(divider ? piece : FirstAndRest(piece, LetterCase::kUpper));
    at = end;
  }
  return in.NewString(std::move(out));
}

Result<Value> ReplaceIn(
    Interpreter& in, const Text& text, const Text& old, const Text& with, int64_t count) {
  BT_RETURN_IF_ERROR(in.ChargeBytes(text.size()));
  const std::string& bytes = text.bytes();
  Text out;
  size_t at = 0;
  while (count != 0) {
    size_t found = old.empty() ? at : bytes.find(old.bytes(), at);
    if (found == std::string::npos || found > bytes.size()) break;
    BT_RETURN_IF_ERROR(in.Charge(1));
    BT_RETURN_IF_ERROR(in.ChargeBytes(with.size()));
    out.Append(text, at, found);
    out.Append(with);
    at = found + old.size();
    --count;
    if (!old.empty()) continue;
    if (at >= bytes.size()) return in.NewString(std::move(out));
    const size_t length = CharacterLength(std::string_view(bytes).substr(at));
    out.Append(text, at, at + length);  // nothing is found before each character
    at += length;
  }
  out.Append(text, at, bytes.size());
  return in.NewString(std::move(out));
}

Result<Value> Replace(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[3];
  BT_RETURN_IF_ERROR(Bind(args, {"old", "new", "count"}, a));
  if (a[2] && a[2]->is_none()) a[2].reset();
  BT_ASSIGN_OR_RETURN(const int64_t count, IntArgument(a[2], "count", -1));
  if (!a[0] || !a[1]) return InvalidArgument("replace needs two strings");
  BT_ASSIGN_OR_RETURN(const Text text, in.ToText(self));
  BT_ASSIGN_OR_RETURN(const Text old, in.ToText(*a[0]));
  BT_ASSIGN_OR_RETURN(const Text with, in.ToText(*a[1]));
  return ReplaceIn(in, text, old, with, count);
}

// Lengths of the lines of a text, each with and without its end, as str.splitlines() sees them.
struct LineLength {
  size_t text, whole;
};
LineLength FirstLine(std::string_view bytes) {
  for (size_t at = 0; at < bytes.size();) {
    char32_t code = 0;
    const size_t length = std::max<size_t>(1, Utf8Decode(bytes.substr(at), code));
    if (bytes[at] == '\r' && at + 1 < bytes.size() && bytes[at + 1] == '\n') return {at, at + 2};
    if ((code >= 10 && code <= 13) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
        code == 0x2028 || code == 0x2029) {
      return {at, at + length};
    }
    at += length;
  }
  return {bytes.size(), bytes.size()};
}

std::vector<Text> Lines(const Text& text, bool keep_ends) {
  std::vector<Text> lines;
  for (size_t at = 0; at < text.size();) {
    const LineLength line = FirstLine(std::string_view(text.bytes()).substr(at));
    lines.push_back(text.Substring(at, at + (keep_ends ? line.whole : line.text)));
    at += line.whole;
  }
  return lines;
}

Result<Value> TextList(Interpreter& in, std::vector<Text> texts) {
  std::vector<Value> items;
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(texts.size())));
  for (Text& text : texts) {
    BT_ASSIGN_OR_RETURN(const Value item, in.NewString(std::move(text)));
    items.push_back(item);
  }
  return in.NewList(std::move(items));
}

Result<Value> SplitLines(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"keepends"}, a));
  BT_RETURN_IF_ERROR(in.ChargeBytes(self.text->size()));
  return TextList(in, Lines(*self.text, BoolArgument(a[0], false)));
}

Result<Value> Indent(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[3];
  BT_RETURN_IF_ERROR(Bind(args, {"width", "first", "blank"}, a));
  if (self.is_undefined()) return UndefinedError(self);
  Text indent;
  if (a[0] && a[0]->is_string()) {
    indent = *a[0]->text;
  } else {
    BT_ASSIGN_OR_RETURN(const int64_t width, IntArgument(a[0], "width", 4));
    const auto spaces = static_cast<size_t>(std::clamp<int64_t>(width, 0, 4096));
    indent = Text(std::string(spaces, ' '), /*trusted=*/true);
  }
  BT_ASSIGN_OR_RETURN(Text text, in.ToText(self));
  text.Append("\n", true);
  const std::vector<Text> lines = Lines(text, false);
  BT_RETURN_IF_ERROR(in.ChargeBytes(text.size() + lines.size() * (indent.size() + 256)));
  Text out;
  if (BoolArgument(a[1], false)) out.Append(indent);
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) {
      out.Append("\n", true);
      if (!lines[i].empty() || BoolArgument(a[2], false)) out.Append(indent);
    }
    out.Append(lines[i]);
  }
  return in.NewString(std::move(out));
}

// str.split(None) and rsplit(None): runs of white space divide; what is left when `splits`
// (negative for all) are done keeps its white space on the far side.
std::vector<Text> SplitWords(const Text& text, int64_t splits, bool from_right) {
  const std::string_view bytes = text.bytes();
  std::vector<Bounds> words;
  bool inside = false;
  for (size_t at = 0; at < bytes.size(); at += CharacterLength(bytes.substr(at))) {
    const bool space = LeadingSpaceLength(bytes.substr(at)) > 0;
    if (!space && !inside) words.push_back({at, bytes.size()});
    if (space && inside) words.back().end = at;
    inside = !space;
  }
  const size_t count = words.size();
  if (splits >= 0 && static_cast<size_t>(splits) < count) {
    const auto taken = static_cast<size_t>(splits);
    if (from_right) {
      words[count - taken - 1].begin = 0;
      words.erase(words.begin(), words.end() - static_cast<std::ptrdiff_t>(taken) - 1);
    } else {
      words[taken].end = bytes.size();
      words.resize(taken + 1);
    }
  }
  std::vector<Text> parts;
  for (const Bounds& word : words) parts.push_back(text.Substring(word.begin, word.end));
  return parts;
}

std::vector<Text> SplitAt(const Text& text,
                          const std::string& separator,
                          int64_t splits,
                          bool from_right) {
  const std::string& bytes = text.bytes();
  std::vector<Text> parts;
  size_t begin = 0, end = bytes.size();
  for (; splits != 0; --splits) {
    if (from_right) {
      if (end < separator.size()) break;
      const size_t found = bytes.rfind(separator, end - separator.size());
      if (found == std::string::npos) break;
      parts.push_back(text.Substring(found + separator.size(), end));
      end = found;
    } else {
      const size_t found = bytes.find(separator, begin);
      if (found == std::string::npos) break;
      parts.push_back(text.Substring(begin, found));
      begin = found + separator.size();
    }
  }
  parts.push_back(text.Substring(begin, end));
  if (from_right) std::reverse(parts.begin(), parts.end());
  return parts;
}

template <bool kFromRight>
Result<Value> Split(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"sep", "maxsplit"}, a));
  BT_ASSIGN_OR_RETURN(const int64_t splits, IntArgument(a[1], "maxsplit", -1));
  BT_RETURN_IF_ERROR(in.Charge(static_cast<int64_t>(self.text->size() / 16)));
  if (!a[0] || a[0]->is_none()) return TextList(in, SplitWords(*self.text, splits, kFromRight));
  BT_ASSIGN_OR_RETURN(const Text* separator, TextArgument(a[0], "sep"));
  if (separator->empty()) return InvalidArgument("empty separator");
  return TextList(in, SplitAt(*self.text, separator->bytes(), splits, kFromRight));
}

template <bool kEnd>
Result<Value> HasAffix(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"prefix"}, a));
  if (!a[0]) return InvalidArgument("needs a string or a tuple of strings");
  std::vector<Value> affixes{*a[0]};
  if (a[0]->is_list()) {
    BT_ASSIGN_OR_RETURN(affixes, in.Items(*a[0]));
  }
  const std::string& bytes = self.text->bytes();
  for (const Value& affix : affixes) {
    BT_ASSIGN_OR_RETURN(const Text* text, TextArgument(affix, "prefix"));
    if (kEnd ? bytes.ends_with(text->bytes()) : bytes.starts_with(text->bytes())) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

template <bool kEnd>
Result<Value> RemoveAffix(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"prefix"}, a));
  BT_ASSIGN_OR_RETURN(const Text* affix, TextArgument(a[0], "prefix"));
  const std::string& bytes = self.text->bytes();
  BT_RETURN_IF_ERROR(in.ChargeBytes(bytes.size()));
  if (kEnd && bytes.ends_with(affix->bytes())) {
    return in.NewString(self.text->Substring(0, bytes.size() - affix->size()));
  }
  if (!kEnd && bytes.starts_with(affix->bytes())) {
    return in.NewString(self.text->Substring(affix->size(), bytes.size()));
  }
  return self;
}

// str.find, rfind, index: characters before the match, -1 (or an error) without one.
template <bool kFromRight, bool kMustBe>
Result<Value> Find(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"sub"}, a));
  BT_ASSIGN_OR_RETURN(const Text* sub, TextArgument(a[0], "sub"));
  const std::string& bytes = self.text->bytes();
  BT_RETURN_IF_ERROR(in.ChargeBytes(bytes.size()));
  const size_t found = kFromRight ? bytes.rfind(sub->bytes()) : bytes.find(sub->bytes());
  if (found != std::string::npos) {
    return Value::Int(
        static_cast<int64_t>(CharacterCount(std::string_view(bytes).substr(0, found))));
  }
  if (kMustBe) return InvalidArgument("substring not found");
  return Value::Int(-1);
}

Result<Value> CountOf(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"sub"}, a));
  BT_ASSIGN_OR_RETURN(const Text* sub, TextArgument(a[0], "sub"));
  const std::string& bytes = self.text->bytes();
  BT_RETURN_IF_ERROR(in.ChargeBytes(bytes.size()));
  if (sub->empty()) return Value::Int(static_cast<int64_t>(CharacterCount(bytes)) + 1);
  int64_t count = 0;
  for (size_t at = bytes.find(sub->bytes()); at != std::string::npos;
       at = bytes.find(sub->bytes(), at + sub->size())) {
    ++count;
  }
  return Value::Int(count);
}

Result<Value> JoinItems(Interpreter& in, const Text& separator, const std::vector<Value>& items) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    BT_RETURN_IF_ERROR(in.Charge(1));
    if (i > 0) BT_RETURN_IF_ERROR(in.AppendString(Value::String(&separator), out));
    BT_RETURN_IF_ERROR(in.AppendString(items[i], out));
  }
  return in.NewString(std::move(out));
}

Result<Value> JoinMethod(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"iterable"}, a));
  if (!a[0]) return InvalidArgument("join needs something to join");
  BT_ASSIGN_OR_RETURN(const std::vector<Value> items, in.Items(*a[0]));
  for (const Value& item : items) {
    if (!item.is_string()) return InvalidArgument("join takes strings");
  }
  return JoinItems(in, *self.text, items);
}

Result<Value> JoinFilter(Interpreter& in, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"d", "attribute"}, a));
  Text separator;
  if (a[0]) {
    BT_ASSIGN_OR_RETURN(separator, in.ToText(*a[0]));
  }
  BT_ASSIGN_OR_RETURN(std::vector<Value> items, in.Items(self));
  if (a[1] && !a[1]->is_none()) {
    for (Value& item : items) {
      BT_ASSIGN_OR_RETURN(item, in.GetItem(item, *a[1]));
    }
  }
  return JoinItems(in, separator, items);
}

Result<Value> StringFilter(Interpreter& in, Value self, const CallArgs& args) {
  BT_RETURN_IF_ERROR(BindSpan(args, {}, {}));
  if (self.is_string()) return self;
  BT_ASSIGN_OR_RETURN(Text text, in.ToText(self));
  return in.NewString(std::move(text));
}

// What int() and float() read from text: white space around, underscores between digits.
std::string NumberText(const Text& text) {
  const Bounds kept = Stripped(text.bytes(), nullptr, true, true);
  std::string number = text.bytes().substr(kept.begin, kept.end - kept.begin);
  if (number.starts_with('+') && !number.starts_with("+-")) number.erase(0, 1);
  return number;
}

bool ReadDouble(const std::string& text, double& value) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), value);
  return read.ec == std::errc() && read.ptr == text.data() + text.size();
}

Result<Value> IntFilter(Interpreter&, Value self, const CallArgs& args) {
  std::optional<Value> a[2];
  BT_RETURN_IF_ERROR(Bind(args, {"default", "base"}, a));
  BT_ASSIGN_OR_RETURN(const int64_t base, IntArgument(a[1], "base", 10));
  if (base < 2 || base > 36) return InvalidArgument("base must be 2 to 36");
  const Value otherwise = a[0].value_or(Value::Int(0));
  if (self.is_undefined()) return UndefinedError(self);
  if (self.is_integral()) return Value::Int(self.AsInt());
  double real = 0;
  if (self.kind == ValueKind::kFloat) {
    real = self.real;
  } else if (self.is_string()) {
    const std::string text = NumberText(*self.text);
    int64_t number = 0;
    const char* end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number, static_cast<int>(base));
    if (read.ec == std::errc() && read.ptr == end) return Value::Int(number);
    if (!ReadDouble(text, real)) return otherwise;
  } else {
    return otherwise;
  }
  if (!(std::fabs(real) < 9.2e18)) return otherwise;
  return Value::Int(static_cast<int64_t>(real));
}

Result<Value> FloatFilter(Interpreter&, Value self, const CallArgs& args) {
  std::optional<Value> a[1];
  BT_RETURN_IF_ERROR(Bind(args, {"default"}, a));
  const Value otherwise = a[0].value_or(Value::Float(0));
  if (self.is_undefined()) return UndefinedError(self);
  if (self.is_number()) return Value::Float(self.AsDouble());
  double real = 0;
  if (self.is_string() && ReadDouble(NumberText(*self.text), real)) return Value::Float(real);
  return otherwise;
}

constexpr NamedBuiltin kFilters[] = {
    {"capitalize", Capitalize},
    {"float", FloatFilter},
    {"indent", Indent},
    {"int", IntFilter},
    {"join", JoinFilter},
    {"lower", ChangeCase<LetterCase::kLower>},
    {"replace", Replace},
    {"safe", StringFilter},
    {"string", StringFilter},
    {"title", TitleFilter},
    {"tojson", ToJson},
    {"trim", Strip<true, true>},
    {"upper", ChangeCase<LetterCase::kUpper>},
};

constexpr NamedBuiltin kMethods[] = {
    {"capitalize", Capitalize},
    {"count", CountOf},
    {"endswith", HasAffix<true>},
    {"find", Find<false, false>},
    {"index", Find<false, true>},
    {"join", JoinMethod},
    {"lower", ChangeCase<LetterCase::kLower>},
    {"lstrip", Strip<true, false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", Replace},
    {"rfind", Find<true, false>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<false, true>},
    {"split", Split<false>},
    {"splitlines", SplitLines},
    {"startswith", HasAffix<false>},
    {"strip", Strip<true, true>},
    {"title", ChangeCase<LetterCase::kTitle>},
    {"upper", ChangeCase<LetterCase::kUpper>},
};

}  // namespace

std::span<const NamedBuiltin> TextFilters() {
  return kFilters;
}
std::span<const NamedBuiltin> StringMethods() {
  return kMethods;
}

}  // namespace baltoro::jinja
