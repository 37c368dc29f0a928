#pragma once

// How JSON is written: strings, numbers, white space, literals, and values of any kind. What is
// used often is made once for a builder and shared by all schemas that are given the same JsonText.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "grammar/grammar_builder.h"

namespace baltoro {

class JsonText {
 public:
  using Expr = GrammarBuilder::Expr;
  // Arrays and objects that are open at once in a value of any kind.
  static constexpr int kMaxFreeDepth = 8;

  // `builder` outlives it.
  explicit JsonText(GrammarBuilder& builder) : builder_(builder) {}
  JsonText(const JsonText&) = delete;
  JsonText& operator=(const JsonText&) = delete;

  GrammarBuilder& builder() { return builder_; }

  // Nothing, one space, or a line break with at most 20 spaces or tabs.
  Expr Space();
  // Any string with its quotes; every spelling of a character.
  Expr String();
  // The same, of `min` to `max` characters; max may be GrammarBuilder::kUnbounded.
  Expr StringOfLength(int64_t min, int64_t max);
  // One character inside a string, in the one spelling of RegexOptions::json_spelling.
  Expr PlainCharacter();
  // The string `text` in that spelling, with or without quotes.
  Expr PlainString(std::string_view text);
  static std::string PlainSpelling(std::string_view text);

  Expr Number();
  Expr Integer();
  Expr Boolean();
  Expr Null();
  // Values, arrays and objects of anything.
  Expr Value();
  Expr Array();
  Expr Object();
  // This value; its members in any order if they are few enough, with any Space.
  Expr Constant(const Json& value);

  // "[" items "]" and "{" members "}" with Space; `inside` is empty if nothing may stand there, and
  // `may_be_empty` says whether the brackets may be empty.
  Expr Brackets(char open, std::optional<Expr> inside, bool may_be_empty, char close);
  // "," and Space.
  Expr Comma();
  // key ":" Space value.
  Expr Member(Expr key, Expr value);

 private:
  Expr Shared(std::optional<Expr>& held, const char* name, Expr (JsonText::*make)());
  Expr MakeSpace();
  Expr MakeString();
  Expr MakeNumber();
  Expr AnyCharacter();
  // Values with at most `depth` arrays and objects open.
  Expr ValueOfDepth(int depth);
  Expr ArrayOfDepth(int depth);
  Expr ObjectOfDepth(int depth);

  GrammarBuilder& builder_;
  std::optional<Expr> space_, string_, number_, integer_, boolean_, character_, plain_;
  std::vector<std::optional<Expr>> values_ = std::vector<std::optional<Expr>>(kMaxFreeDepth + 1);
};

// Any JSON value; any JSON object; one of these strings, as they are.
GrammarBuilder::Expr AddJsonValue(GrammarBuilder& builder);
GrammarBuilder::Expr AddJsonObject(GrammarBuilder& builder);
GrammarBuilder::Expr AddChoice(GrammarBuilder& builder, std::span<const std::string> texts);

}  // namespace baltoro
