#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include "base/utf8.h"
#include "support/support.h"
#include "support/vocabulary.h"

namespace baltoro {
namespace {

class DetokenizerTest : public ::testing::Test {
 protected:
  DetokenizerTest() {
    test::WriteVocabulary(folder_.path(), test::RandomVocabulary(0, 1));  // a token is a byte
    auto loaded = Tokenizer::Load(folder_.path());
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
  }

  // All that comes out, and a check of each part.
  std::string Stream(std::span<const TokenId> ids, bool skip_special) {
    StreamDetokenizer stream(*tokenizer_, skip_special);
    std::string out;
    for (const TokenId id : ids) {
      const std::string part = stream.Push(id);
      EXPECT_TRUE(IsValidUtf8(part));
      out += part;
    }
    return out + stream.Finish();
  }

  test::TempDir folder_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(DetokenizerTest, HoldsACharacterUntilItIsWhole) {
  const std::vector<TokenId> ids = tokenizer_->Encode("é😀");
  ASSERT_EQ(ids.size(), 6u);
  StreamDetokenizer stream(*tokenizer_, true);

  std::vector<std::string> parts;
  for (const TokenId id : ids) parts.push_back(stream.Push(id));

  EXPECT_EQ(parts, (std::vector<std::string>{"", "é", "", "", "", "😀"}));
  EXPECT_EQ(stream.Finish(), "");
}

TEST_F(DetokenizerTest, AnIncompleteEndBecomesOneReplacement) {
  StreamDetokenizer stream(*tokenizer_, true);
  for (const TokenId id : tokenizer_->Encode("a\xF0\x9F\x98")) stream.Push(id);

  EXPECT_EQ(stream.Finish(), "\uFFFD");
  EXPECT_EQ(stream.Push(tokenizer_->Encode("b")[0]), "b");
  EXPECT_EQ(stream.Finish(), "");
}

TEST_F(DetokenizerTest, AWrongByteComesOutAtOnce) {
  StreamDetokenizer stream(*tokenizer_, true);

  EXPECT_EQ(stream.Push(tokenizer_->Encode("\xF0")[0]), "");
  EXPECT_EQ(stream.Push(tokenizer_->Encode("a")[0]), "\uFFFDa");
  EXPECT_EQ(stream.Push(tokenizer_->Encode("\x80")[0]), "\uFFFD");
}

TEST_F(DetokenizerTest, SpecialTokensComeOutOrNot) {
  const TokenId end = *tokenizer_->SpecialId("<|im_end|>");
  const TokenId think = *tokenizer_->SpecialId("<think>");
  const std::vector<TokenId> ids = {think, end};

  EXPECT_EQ(Stream(ids, true), "<think>");
  EXPECT_EQ(Stream(ids, false), "<think><|im_end|>");
}

TEST_F(DetokenizerTest, EqualsTheWholeForRandomTokens) {
  std::mt19937 random(4);
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> ids;
    while (ids.size() < 12) {
      std::string text;
      switch (random() % 4) {
        case 0:
          text += static_cast<char>(random());
          break;
        case 1:
          ids.push_back(256 + static_cast<TokenId>(random() % 258));  // one of them out of range
          break;
        default:
          Utf8Append(text, U"aé中😀\U0010FFFF"[random() % 5]);
          text.resize(1 + random() % text.size());  // often cut short
      }
      for (const TokenId id : tokenizer_->Encode(text)) ids.push_back(id);
    }
    const bool skip_special = random() % 2 == 0;
    ASSERT_EQ(Stream(ids, skip_special), tokenizer_->Decode(ids, skip_special)) << round;
  }
}

}  // namespace
}  // namespace baltoro
