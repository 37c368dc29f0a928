#include "text/pretokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Split(std::string_view text) {
  std::vector<std::string> pieces;
  while (!text.empty()) {
    const size_t length = FirstPieceLength(text);
    pieces.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return pieces;
}

TEST(PretokenizerTest, WordsTakeOneCharacterBeforeThem) {
  EXPECT_THAT(Split("Hello, world!"), ElementsAre("Hello", ",", " world", "!"));
  EXPECT_THAT(Split("foo_bar.baz()"), ElementsAre("foo", "_bar", ".baz", "()"));
  EXPECT_THAT(Split("  a"), ElementsAre(" ", " a"));
  EXPECT_THAT(Split("!!a"), ElementsAre("!!", "a"));
}

TEST(PretokenizerTest, WordsBreakBeforeACapital) {
  EXPECT_THAT(Split("helloWorldABCd"), ElementsAre("hello", "World", "ABCd"));
  EXPECT_THAT(Split("ABC"), ElementsAre("ABC"));
}

// A caseless letter ends U* L+ when no lower case follows: the pattern gives back to it.
TEST(PretokenizerTest, GivesBackToTheLastCaselessLetter) {
  EXPECT_THAT(Split("AʰB"), ElementsAre("Aʰ", "B"));
  EXPECT_THAT(Split("AʰBc"), ElementsAre("AʰBc"));
  EXPECT_THAT(Split("カA"), ElementsAre("カ", "A"));
}

TEST(PretokenizerTest, AMarkIsPrefixOrWord) {
  EXPECT_THAT(Split("\u0301ab"), ElementsAre("\u0301ab"));
  EXPECT_THAT(Split("\u0301A"), ElementsAre("\u0301", "A"));
  EXPECT_THAT(Split("\u0301!"), ElementsAre("\u0301", "!"));
  EXPECT_THAT(Split("!\u0301"), ElementsAre("!\u0301"));
}

TEST(PretokenizerTest, ContractionsStayWithTheWord) {
  EXPECT_THAT(Split("I'm DON'T we'LL x'ſ"), ElementsAre("I'm", " DON'T", " we'LL", " x'ſ"));
  EXPECT_THAT(Split("a'x a'l a'"), ElementsAre("a", "'x", " a", "'l", " a", "'"));
  EXPECT_THAT(Split("漢's"), ElementsAre("漢", "'s"));
}

TEST(PretokenizerTest, HanStandsAlone) {
  EXPECT_THAT(Split("中文English混排"), ElementsAre("中文", "English", "混排"));
  EXPECT_THAT(Split("漢字かな"), ElementsAre("漢字", "かな"));
  EXPECT_THAT(Split("々〇"), ElementsAre("々〇"));
  EXPECT_THAT(Split("1〇"), ElementsAre("1〇"));  // a number too
  EXPECT_THAT(Split("!⺀"), ElementsAre("!⺀"));  // a symbol too
}

TEST(PretokenizerTest, NumbersGoInThrees) {
  EXPECT_THAT(Split("1234567"), ElementsAre("123", "456", "7"));
  EXPECT_THAT(Split("3.14"), ElementsAre("3", ".", "14"));
  EXPECT_THAT(Split(" 1"), ElementsAre(" ", "1"));
}

TEST(PretokenizerTest, SymbolsTakeTheLineEnd) {
  EXPECT_THAT(Split("};\r\n\nx"), ElementsAre("};\r\n\n", "x"));
  EXPECT_THAT(Split(" ++ 1"), ElementsAre(" ++", " ", "1"));
}

TEST(PretokenizerTest, SpaceEndsAtTheLastLineEndElseLeavesOne) {
  EXPECT_THAT(Split(" \n \n  a"), ElementsAre(" \n \n", " ", " a"));
  EXPECT_THAT(Split("a   "), ElementsAre("a", "   "));
  EXPECT_THAT(Split("   1"), ElementsAre("  ", " ", "1"));
  EXPECT_THAT(Split("a\u3000b"), ElementsAre("a", "\u3000b"));
  EXPECT_THAT(Split("\u0085\v1"), ElementsAre("\u0085", "\v", "1"));
}

TEST(PretokenizerTest, ABadByteIsAPiece) {
  EXPECT_THAT(Split("a\x80\x80 b"), ElementsAre("a", "\x80", "\x80", " b"));
  EXPECT_THAT(Split("\xE4\xBD"), ElementsAre("\xE4", "\xBD"));              // cut short
  EXPECT_THAT(Split("\xC0\x80"), ElementsAre("\xC0", "\x80"));              // overlong
  EXPECT_THAT(Split("\xED\xA0\x80"), ElementsAre("\xED", "\xA0", "\x80"));  // surrogate
  EXPECT_THAT(Split("\xF4\x90\x80\x80"), ElementsAre("\xF4", "\x90", "\x80", "\x80"));
  EXPECT_THAT(Split(" \xFF"), ElementsAre(" ", "\xFF"));
  EXPECT_EQ(FirstPieceLength(""), 0u);
}

}  // namespace
}  // namespace baltoro
