#include "grammar/json_text.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "grammar/json_number.h"
#include "grammar/regex.h"

namespace baltoro {

using Expr = GrammarBuilder::Expr;

namespace {

constexpr int64_t kMaxIndent = 20;
constexpr size_t kMaxAnyOrder = 256;
constexpr double kExactInteger = 1e15;

Expr Sequence(GrammarBuilder& builder, std::initializer_list<Expr> parts) {
  return builder.Sequence(std::span<const Expr>(parts.begin(), parts.size()));
}

Expr Choice(GrammarBuilder& builder, std::initializer_list<Expr> ways) {
  return builder.Choice(std::span<const Expr>(ways.begin(), ways.size()));
}

}  // namespace

Expr JsonText::Shared(std::optional<Expr>& held, const char* name, Expr (JsonText::*make)()) {
  if (!held) {
    const GrammarBuilder::Rule rule = builder_.DeclareRule(name);
    builder_.DefineRule(rule, (this->*make)());
    held = builder_.Call(rule);
  }
  return *held;
}

// White space is part of what surrounds it and not a rule: it is a few states, and calls cost.
Expr JsonText::Space() {
  if (!space_) space_ = MakeSpace();
  return *space_;
}

Expr JsonText::MakeSpace() {
  const Expr indent = Choice(builder_, {builder_.Literal(" "), builder_.Literal("\t")});
  const Expr line =
      Sequence(builder_, {builder_.Literal("\n"), builder_.Repeat(indent, 0, kMaxIndent)});
  return builder_.Optional(Choice(builder_, {builder_.Literal(" "), line}));
}

Expr JsonText::AnyCharacter() {
  if (character_) return *character_;
  const auto hex = [&](std::string_view chars) {
    std::vector<Expr> ways;
    for (const char c : chars) {
      ways.push_back(builder_.Bytes(static_cast<uint8_t>(c), static_cast<uint8_t>(c)));
    }
    return builder_.Choice(ways);
  };
  const Expr any = hex("0123456789abcdefABCDEF");
  const Expr three = builder_.Repeat(any, 3, 3);
  const Expr two = builder_.Repeat(any, 2, 2);
  // A high surrogate is followed by a low one, and neither comes alone.
  const Expr unit =
      Choice(builder_, {Sequence(builder_, {hex("0123456789abcefABCEF"), three}),
                        Sequence(builder_, {hex("dD"), hex("01234567"), two}),
                        Sequence(builder_, {hex("dD"), hex("89abAB"), two, builder_.Literal("\\u"),
                                            hex("dD"), hex("cdefCDEF"), two})});
  const CharSet raw =
      CharSet{{0, 0x1F}, {U'"', U'"'}, {U'\\', U'\\'}, {0xD800, 0xDFFF}}.Complement();
  const Expr escaped = Sequence(
      builder_, {builder_.Literal("\\"),
                 Choice(builder_, {hex("\"\\/bfnrt"), Sequence(builder_, {hex("u"), unit})})});
  character_ = Choice(builder_, {builder_.CodePoints(raw.ranges()), escaped});
  return *character_;
}

Expr JsonText::MakeString() {
  return StringOfLength(0, GrammarBuilder::kUnbounded);
}

Expr JsonText::String() {
  return Shared(string_, "string", &JsonText::MakeString);
}

Expr JsonText::StringOfLength(int64_t min, int64_t max) {
  const Expr quote = builder_.Literal("\"");
  return Sequence(builder_, {quote, builder_.Repeat(AnyCharacter(), min, max), quote});
}

Expr JsonText::PlainCharacter() {
  if (!plain_) plain_ = AddJsonSpelling(builder_, CharSet{{0, 0x10FFFF}});
  return *plain_;
}

std::string JsonText::PlainSpelling(std::string_view text) {
  // nlohmann's escapes are those of AddJsonSpelling; invalid UTF-8 cannot come from parsed JSON.
  std::string out =
      Json(text).dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
  return out.substr(1, out.size() - 2);
}

Expr JsonText::PlainString(std::string_view text) {
  return builder_.Literal("\"" + PlainSpelling(text) + "\"");
}

Expr JsonText::MakeNumber() {
  return AddNumber(builder_, NumberRules()).value();  // without rules nothing can be refused
}

Expr JsonText::Number() {
  return Shared(number_, "number", &JsonText::MakeNumber);
}

Expr JsonText::Integer() {
  if (!integer_) {
    integer_ = AddRegex(builder_, "-?(0|[1-9][0-9]{0,17})", {.anchored = true}).value();
  }
  return *integer_;
}

Expr JsonText::Boolean() {
  if (!boolean_) {
    boolean_ = Choice(builder_, {builder_.Literal("true"), builder_.Literal("false")});
  }
  return *boolean_;
}

Expr JsonText::Null() {
  return builder_.Literal("null");
}

Expr JsonText::Comma() {
  return Sequence(builder_, {builder_.Literal(","), Space()});
}

Expr JsonText::Member(Expr key, Expr value) {
  return Sequence(builder_, {key, builder_.Literal(":"), Space(), value});
}

Expr JsonText::Brackets(char open, std::optional<Expr> inside, bool may_be_empty, char close) {
  const Expr first = builder_.Literal(std::string_view(&open, 1));
  const Expr last = builder_.Literal(std::string_view(&close, 1));
  std::vector<Expr> ways;
  if (may_be_empty) ways.push_back(Sequence(builder_, {Space(), last}));
  if (inside) ways.push_back(Sequence(builder_, {Space(), *inside, Space(), last}));
  return Sequence(builder_, {first, builder_.Choice(ways)});
}

Expr JsonText::ArrayOfDepth(int depth) {
  const Expr item = ValueOfDepth(depth - 1);
  const Expr more =
      builder_.Repeat(Sequence(builder_, {Comma(), item}), 0, GrammarBuilder::kUnbounded);
  return Brackets('[', Sequence(builder_, {item, more}), true, ']');
}

Expr JsonText::ObjectOfDepth(int depth) {
  const Expr member = Member(String(), ValueOfDepth(depth - 1));
  const Expr more =
      builder_.Repeat(Sequence(builder_, {Comma(), member}), 0, GrammarBuilder::kUnbounded);
  return Brackets('{', Sequence(builder_, {member, more}), true, '}');
}

Expr JsonText::ValueOfDepth(int depth) {
  std::optional<Expr>& held = values_[static_cast<size_t>(depth)];
  if (held) return *held;
  std::vector<Expr> ways = {String(), Number(), Boolean(), Null()};
  if (depth > 0) {
    ways.push_back(ArrayOfDepth(depth));
    ways.push_back(ObjectOfDepth(depth));
  }
  const GrammarBuilder::Rule rule = builder_.DeclareRule("value" + std::to_string(depth));
  builder_.DefineRule(rule, builder_.Choice(ways));
  held = builder_.Call(rule);
  return *held;
}

Expr JsonText::Value() {
  return ValueOfDepth(kMaxFreeDepth);
}

Expr JsonText::Array() {
  return ArrayOfDepth(kMaxFreeDepth);
}

Expr JsonText::Object() {
  return ObjectOfDepth(kMaxFreeDepth);
}

Expr JsonText::Constant(const Json& value) {
  if (value.is_string()) return PlainString(value.get_ref<const std::string&>());
  if (value.is_number_float() && std::abs(value.get<double>()) < kExactInteger &&
      value.get<double>() == std::floor(value.get<double>())) {
    const std::string whole = std::to_string(static_cast<int64_t>(value.get<double>()));
    return Choice(builder_, {builder_.Literal(whole), builder_.Literal(whole + ".0")});
  }
  if (!value.is_structured()) return builder_.Literal(value.dump());
  if (value.empty())
    return Brackets(value.is_array() ? '[' : '{', std::nullopt, true, value.is_array() ? ']' : '}');
  if (value.is_object() && value.size() <= kMaxAnyOrder) {
    GrammarBuilder::Members members;
    members.separator = Comma();
    for (const auto& [key, item] : value.items()) {
      members.members.push_back(
          {.item = Member(PlainString(key), Constant(item)), .required = true});
    }
    return Brackets('{', builder_.AnyOrder(members), false, '}');
  }
  std::vector<Expr> parts;
  for (const auto& [key, item] : value.items()) {
    if (!parts.empty()) parts.push_back(Comma());
    parts.push_back(value.is_array() ? Constant(item) : Member(PlainString(key), Constant(item)));
  }
  return Brackets(value.is_array() ? '[' : '{', builder_.Sequence(parts), false,
                  value.is_array() ? ']' : '}');
}

Expr AddJsonValue(GrammarBuilder& builder) {
  return JsonText(builder).Value();
}

Expr AddJsonObject(GrammarBuilder& builder) {
  return JsonText(builder).Object();
}

Expr AddChoice(GrammarBuilder& builder, std::span<const std::string> texts) {
  std::vector<Expr> ways;
  for (const std::string& text : texts) ways.push_back(builder.Literal(text));
  return builder.Choice(ways);
}

}  // namespace baltoro
