#include "text/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "support/vocabulary.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

BpeVocabulary BuildOrDie(const std::vector<std::string>& tokens) {
  Result<BpeVocabulary> built = BpeVocabulary::Build(tokens);
  EXPECT_TRUE(built.ok()) << built.status().message();
  return std::move(built).value();
}

std::vector<TokenId> EncodePiece(const BpeVocabulary& vocabulary, std::string_view piece) {
  BpeVocabulary::Scratch scratch;
  std::vector<TokenId> out;
  vocabulary.EncodePiece(piece, scratch, out);
  return out;
}

TEST(BpeTest, FindsEveryTokenAndNothingElse) {
  const auto tokens = test::RandomVocabulary(3000, 1, 20);
  const BpeVocabulary vocabulary = BuildOrDie(tokens);
  const std::set<std::string> known(tokens.begin(), tokens.end());

  for (size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(vocabulary.Find(tokens[i]), static_cast<TokenId>(i));
    EXPECT_EQ(vocabulary.Bytes(static_cast<TokenId>(i)), tokens[i]);
    for (const std::string& other :
         {tokens[i] + '\0', tokens[i] + "a", tokens[i].substr(1), '\0' + tokens[i]}) {
      if (known.contains(other)) continue;
      EXPECT_EQ(vocabulary.Find(other), BpeVocabulary::kNone);
    }
  }
  EXPECT_EQ(vocabulary.Find(std::string(5000, 'a')), BpeVocabulary::kNone);
}

// Lengths to both sides of every threshold, and alphabets so small that merges overlap.
TEST(BpeTest, EqualsTheNaiveAlgorithm) {
  std::mt19937 random(2);
  uint32_t seed = 100;
  for (const int alphabet : {1, 2, 3, 8, 256}) {
    const auto tokens = test::RandomVocabulary(alphabet == 1 ? 30 : 500, ++seed, alphabet);
    const BpeVocabulary vocabulary = BuildOrDie(tokens);
    const test::NaiveBpe naive(tokens);
    for (int round = 0; round < 600; ++round) {
      const size_t length = round < 400 ? 1 + random() % 12 : 80 + random() % 200;
      std::string piece;
      for (size_t i = 0; i < length; ++i) piece += tokens[random() % alphabet];
      ASSERT_EQ(EncodePiece(vocabulary, piece), naive.Encode(piece))
          << "alphabet " << alphabet << ", round " << round << ", length " << length;
    }
  }
}

// Characters of one to four bytes, and tokens cut out of text anywhere, so that they begin and end
// inside characters, in an order that has longer ones before their parts.
TEST(BpeTest, EqualsTheNaiveAlgorithmOnTokensThatCutCharacters) {
  std::mt19937 random(6);
  const std::vector<std::string> chars = {"a",  "é",  "中", "丰",   "串",   "乐",
                                          "倭", "丳", "😀",  "\x80", "\xE4", "\xB8\xAD"};
  for (int round = 0; round < 400; ++round) {
    const size_t kinds = 2 + random() % (chars.size() - 1);
    const auto some_text = [&](size_t length) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text += chars[(2 + random() % kinds) % chars.size()];
      return text;
    };
    auto tokens = test::RandomVocabulary(0, 1);
    std::set<std::string> known(tokens.begin(), tokens.end());
    for (int i = 0; i < 60; ++i) {
      const std::string text = some_text(6);
      const size_t from = random() % text.size();
      const std::string token = text.substr(from, 2 + random() % (i < 30 ? 2 : 7));
      if (known.insert(token).second) tokens.push_back(token);
    }
    if (round % 2 == 0) std::shuffle(tokens.begin() + 256, tokens.end(), random);
    const BpeVocabulary vocabulary = BuildOrDie(tokens);
    const test::NaiveBpe naive(tokens);
    for (int i = 0; i < 40; ++i) {
      const std::string piece = some_text(1 + random() % (i < 35 ? 12 : 90));
      ASSERT_EQ(EncodePiece(vocabulary, piece), naive.Encode(piece)) << round << ": " << piece;
    }
  }
}

// The first merge of the character's bytes has a higher id than a token around the character.
TEST(BpeTest, ACharacterBecomesWholeOnlyInItsTurn) {
  auto tokens = test::RandomVocabulary(0, 1);
  for (const char* token : {"中", "中d", "de", "\xE4\xB8"}) tokens.push_back(token);

  const BpeVocabulary vocabulary = BuildOrDie(tokens);

  EXPECT_EQ(EncodePiece(vocabulary, "中de"), (std::vector<TokenId>{256, 258}));
  EXPECT_EQ(EncodePiece(vocabulary, "中d中"), (std::vector<TokenId>{257, 256}));
}

TEST(BpeTest, TakesAWholePieceThatMergingWouldNotReach) {
  auto tokens = test::RandomVocabulary(0, 1);
  tokens.push_back("xyz");  // neither "xy" nor "yz" is a token

  const BpeVocabulary vocabulary = BuildOrDie(tokens);

  EXPECT_EQ(EncodePiece(vocabulary, "xyz"), std::vector<TokenId>{256});
  EXPECT_EQ(EncodePiece(vocabulary, "xyza").size(), 4u);
}

// Windows as small as a few tokens, so that they often end where merging would not stop.
TEST(BpeTest, WindowsChangeNothing) {
  std::mt19937 random(8);
  uint32_t seed = 300;
  for (const int alphabet : {1, 2, 3, 8, 40}) {
    const auto tokens = test::RandomVocabulary(alphabet == 1 ? 30 : 300, ++seed, alphabet);
    const BpeVocabulary vocabulary = BuildOrDie(tokens);
    const test::NaiveBpe naive(tokens);
    for (int round = 0; round < 60; ++round) {
      std::string piece;
      const std::string unit = tokens[random() % tokens.size()];
      const size_t length = 129 + random() % 300;
      while (piece.size() < length) piece += random() % 8 == 0 ? tokens[random() % alphabet] : unit;
      const std::vector<TokenId> want = naive.Encode(piece);
      for (const size_t window_bytes : {16, 50, 64, 128, 200}) {
        BpeVocabulary::Scratch scratch;
        scratch.window_bytes = window_bytes;
        std::vector<TokenId> out = {7};  // what is there stays
        vocabulary.EncodePiece(piece, scratch, out);
        ASSERT_EQ(out[0], 7);
        out.erase(out.begin());
        ASSERT_EQ(out, want) << alphabet << ", window " << window_bytes << ": " << piece;
      }
    }
  }
}

TEST(BpeTest, ScratchIsReusable) {
  const auto tokens = test::RandomVocabulary(200, 3, 4);
  const BpeVocabulary vocabulary = BuildOrDie(tokens);
  BpeVocabulary::Scratch scratch;
  std::string piece;
  for (int i = 0; i < 1000; ++i) piece += tokens[static_cast<size_t>(i * i % 4)];

  for (const size_t length : {1000, 300, 999, 97}) {
    std::vector<TokenId> out;
    vocabulary.EncodePiece(std::string_view(piece).substr(0, length), scratch, out);
    EXPECT_EQ(out, EncodePiece(vocabulary, piece.substr(0, length))) << length;
  }
}

TEST(BpeTest, BuildNamesTheTokenItRefuses) {
  auto tokens = test::RandomVocabulary(10, 1);
  const auto message = [&] { return BpeVocabulary::Build(tokens).status().message(); };
  EXPECT_EQ(message(), "");

  tokens.push_back("");
  EXPECT_EQ(message(), "token 266 is empty");
  tokens.back() = tokens[260];
  EXPECT_THAT(message(), HasSubstr("repeats token 260"));
  tokens.back() = std::string(2000, 'x');
  EXPECT_THAT(message(), HasSubstr("token 266 (\"xxxx"));
  EXPECT_THAT(message(), HasSubstr("2000 bytes, the limit is 1024"));
  tokens.pop_back();
  tokens[0x61 ^ 0xFF] = "longer than one byte";
  EXPECT_EQ(message(), "no token for the single byte \"\\xff\"");
}

}  // namespace
}  // namespace baltoro
