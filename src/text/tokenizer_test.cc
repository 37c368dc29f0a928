#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/utf8.h"
#include "support/support.h"
#include "support/vocabulary.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kConfig[] = R"({"added_tokens_decoder": {
    "456": {"content": "<|im_end|>", "special": true},
    "458": {"content": "<think>", "special": false}}})";

class TokenizerTest : public ::testing::Test {
 protected:
  TokenizerTest() : tokens_(test::RandomVocabulary(200, 5, 16)) {
    test::WriteVocabulary(folder_.path(), tokens_);
  }

  void WriteConfig(std::string_view text) {
    test::WriteFile(folder_.path() + "/tokenizer_config.json", text);
  }
  std::unique_ptr<Tokenizer> Load() {
    auto loaded = Tokenizer::Load(folder_.path());
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    return loaded.ok() ? std::move(loaded).value() : nullptr;
  }
  std::string LoadError() { return Tokenizer::Load(folder_.path()).status().message(); }

  test::TempDir folder_;
  std::vector<std::string> tokens_;
};

TEST_F(TokenizerTest, NamesReservedAndOrdinaryIds) {
  WriteConfig(kConfig);
  const auto tokenizer = Load();

  EXPECT_EQ(tokenizer->vocab_size(), 456 + 256);
  EXPECT_EQ(tokenizer->SpecialId("<|im_end|>"), 456);
  EXPECT_EQ(tokenizer->SpecialId("<think>"), 458);
  EXPECT_EQ(tokenizer->SpecialId("<|reserved_token_457|>"), 457);
  EXPECT_EQ(tokenizer->SpecialId("<|reserved_token_456|>"), std::nullopt);
  EXPECT_EQ(tokenizer->SpecialId("[BOS]"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenBytes(300), tokens_[300]);
  EXPECT_EQ(tokenizer->TokenBytes(458), "<think>");
  EXPECT_EQ(tokenizer->TokenBytes(711), "<|reserved_token_711|>");
  for (const TokenId out_of_range : {-1, 712, INT32_MAX, INT32_MIN}) {
    EXPECT_EQ(tokenizer->TokenBytes(out_of_range), "");
    EXPECT_FALSE(tokenizer->IsSpecial(out_of_range));
  }
  EXPECT_TRUE(tokenizer->IsControl(456));
  EXPECT_FALSE(tokenizer->IsControl(458));
  EXPECT_TRUE(tokenizer->IsSpecial(458));
  EXPECT_TRUE(tokenizer->IsSpecial(457));
  EXPECT_FALSE(tokenizer->IsSpecial(455));
}

TEST_F(TokenizerTest, WithoutAConfigTheNamesAreThoseOfK25) {
  for (const bool with_file : {false, true}) {
    if (with_file) WriteConfig(R"({"model_max_length": 5})");
    const auto tokenizer = Load();
    EXPECT_EQ(tokenizer->SpecialId("[BOS]"), 456);
    EXPECT_EQ(tokenizer->SpecialId("</think>"), 456 + 23);
    EXPECT_EQ(tokenizer->SpecialId("[PAD]"), 456 + 255);
    EXPECT_EQ(tokenizer->SpecialId("<|reserved_token_461|>"), 461);
    EXPECT_TRUE(tokenizer->IsControl(*tokenizer->SpecialId("<|im_middle|>")));
    EXPECT_FALSE(tokenizer->IsControl(*tokenizer->SpecialId("<|tool_call_begin|>")));
  }
}

TEST_F(TokenizerTest, IdsBeyondTheReservedOnesLeaveAGap) {
  WriteConfig(R"({"added_tokens_decoder": {"800": {"content": "<far>"}}})");
  const auto tokenizer = Load();

  EXPECT_EQ(tokenizer->vocab_size(), 801);
  EXPECT_EQ(tokenizer->SpecialId("<far>"), 800);
  EXPECT_FALSE(tokenizer->IsSpecial(750));
  EXPECT_EQ(tokenizer->TokenBytes(750), "");
}

TEST_F(TokenizerTest, TextNeverBecomesASpecialToken) {
  WriteConfig(kConfig);
  const auto tokenizer = Load();
  const std::string text = "a<|im_end|><think><|reserved_token_457|>";

  for (const TokenId id : tokenizer->Encode(text)) EXPECT_FALSE(tokenizer->IsSpecial(id));
  for (const TokenId id : tokenizer->EncodeSegments(std::vector<TextSegment>{{text, false}})) {
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
  EXPECT_THAT(tokenizer->EncodeWithSpecials("<|im_end|><think><|reserved_token_457|>"),
              ElementsAre(456, 458, 457));
}

TEST_F(TokenizerTest, ASpecialLiesInsideOneAllowedSegment) {
  WriteConfig(kConfig);
  const auto tokenizer = Load();
  const auto encode = [&](std::vector<TextSegment> segments) {
    return tokenizer->EncodeSegments(segments);
  };

  EXPECT_THAT(encode({{"<think>", true}}), ElementsAre(458));
  EXPECT_EQ(encode({{"<thi", true}, {"nk>", true}}), tokenizer->Encode("<think>"));
  EXPECT_EQ(encode({{"<", true}, {"think", false}, {">", true}}), tokenizer->Encode("<think>"));
  EXPECT_EQ(encode({}), std::vector<TokenId>{});
  EXPECT_EQ(encode({{"", true}, {"", false}}), std::vector<TokenId>{});
}

TEST_F(TokenizerTest, TextBetweenSpecialsIsOneRun) {
  tokens_.push_back("xy");
  test::WriteVocabulary(folder_.path(), tokens_);
  const auto tokenizer = Load();
  const TokenId xy = 456;
  const TokenId think = *tokenizer->SpecialId("<think>");

  EXPECT_THAT(
      tokenizer->EncodeSegments(std::vector<TextSegment>{
          {"<think>x", true}, {"y", false}, {"<think>", true}, {"x", false}, {"y<think>", true}}),
      ElementsAre(think, xy, think, xy, think));
}

TEST_F(TokenizerTest, DecodeUndoesEncodeForAnyBytes) {
  const auto tokenizer = Load();
  std::mt19937 random(9);

  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t i = random() % 60; i > 0; --i) {
      if (random() % 2 == 0) {
        text += static_cast<char>(random());
      } else {
        Utf8Append(text, U"a Z\n1é中か😀'\u0301"[random() % 11]);
      }
    }
    const std::vector<TokenId> ids = tokenizer->Encode(text);
    std::string joined;
    for (const TokenId id : ids) joined += tokenizer->TokenBytes(id);
    ASSERT_EQ(joined, text);
    ASSERT_EQ(tokenizer->Decode(ids, true), Utf8Sanitize(text));
  }
}

TEST_F(TokenizerTest, DecodeDropsControlTokensOnly) {
  WriteConfig(kConfig);
  const auto tokenizer = Load();
  const TokenId a = tokenizer->Encode("a")[0];
  const std::vector<TokenId> ids = {a, 456, 458, 999, -5, a};

  EXPECT_EQ(tokenizer->Decode(ids, false), "a<|im_end|><think>a");
  EXPECT_EQ(tokenizer->Decode(ids, true), "a<think>a");
}

TEST_F(TokenizerTest, ErrorsOfTheVocabularyNameFileAndLine) {
  const std::string path = folder_.path() + "/tiktoken.model";
  const auto error_of = [&](std::string_view content) {
    test::WriteFile(path, content);
    return LoadError();
  };

  EXPECT_EQ(error_of(""), path + ": no tokens in it");
  EXPECT_EQ(error_of("IQ== 0\nIg==\n"), path + ":2: expected base64, a space and a rank");
  EXPECT_EQ(error_of("IQ== 0\n\n"), path + ":2: expected base64, a space and a rank");
  for (const char* bad : {"I", "IQ=", "IQ", "IR==", "I===", "====", "I!==", "=Q==", "I=Q="}) {
    EXPECT_EQ(error_of(std::string(bad) + " 0\n"), path + ":1: expected base64, a space and a rank")
        << bad;
  }
  EXPECT_EQ(error_of("IQ== 0x\n"), path + ":1: the rank is not a number");
  EXPECT_EQ(error_of("IQ== -1\n"), path + ":1: the rank is not a number");
  EXPECT_THAT(error_of("IQ== 0\nIg== 2\n"), HasSubstr(":2: rank 2 is outside 0 to 1"));
  EXPECT_EQ(error_of("IQ== 1\nIg== 1\n"), path + ":2: rank 1 was given before");
  EXPECT_THAT(error_of("IQ== 0\n"), HasSubstr(path + ": no token for the single byte"));
  std::filesystem::remove(path);
  EXPECT_THAT(LoadError(), HasSubstr(path));
}

TEST_F(TokenizerTest, LinesMayEndAsOnWindows) {
  std::string content;
  for (size_t i = tokens_.size(); i-- > 0;) {  // in any order, too
    content += test::Base64(tokens_[i]) + " " + std::to_string(i) + "\r\n";
  }
  test::WriteFile(folder_.path() + "/tiktoken.model", content);

  EXPECT_EQ(Load()->TokenBytes(300), tokens_[300]);
}

TEST_F(TokenizerTest, ErrorsOfTheConfigNameTheKey) {
  const auto error_of = [&](std::string_view content) {
    WriteConfig(content);
    return LoadError();
  };
  const std::string key = "tokenizer_config.json: added_tokens_decoder";

  EXPECT_THAT(error_of("{"), HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(error_of("[]"), HasSubstr("not a JSON object"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": 1})"), HasSubstr(key + " is not an object"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": {"455": {"content": "x"}}})"),
              HasSubstr(key + "[\"455\"]: the id must be a number from 456"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": {"2000000000": {"content": "x"}}})"),
              HasSubstr("the id must be a number"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": {"456": "x"}})"),
              HasSubstr(key + "[\"456\"]: \"content\" must be a string"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": {"456": {"content": ""}}})"),
              HasSubstr("\"content\" must be a string that is not empty"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": {"456": {"content": "x", "special": 1}}})"),
              HasSubstr("\"special\" must be true or false"));
  EXPECT_THAT(error_of(R"({"added_tokens_decoder": {
                  "456": {"content": "x"}, "460": {"content": "x"}}})"),
              HasSubstr("added tokens 456 and 460 have the same name x"));
}

// The model in this repository, whose vocabulary is small.
TEST(PocketTokenizerTest, LoadsAndFindsItsSpecialTokensByName) {
  const auto loaded = Tokenizer::Load("pocket/model");
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Tokenizer& pocket = *loaded.value();

  EXPECT_LE(pocket.vocab_size(), 2304);
  for (const char* name : {"[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_middle|>",
                           "<|tool_call_begin|>", "<think>", "</think>"}) {
    const std::optional<TokenId> id = pocket.SpecialId(name);
    ASSERT_TRUE(id.has_value()) << name;
    EXPECT_GE(*id, pocket.vocab_size() - 256) << name;
    EXPECT_EQ(pocket.EncodeWithSpecials(name), std::vector<TokenId>{*id});
  }
  const std::string text = "What is 12 + 30? 中 😀\n";
  EXPECT_EQ(pocket.Decode(pocket.Encode(text), true), text);
}

}  // namespace
}  // namespace baltoro
