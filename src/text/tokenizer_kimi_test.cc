// The published vocabulary of Kimi K2.5, against ids that tiktoken made. The data lies outside the
// repository; without it these tests skip.

#include <gtest/gtest.h>
#include <pthread.h>

#include <algorithm>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "support/support.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace baltoro {
namespace {

class KimiTokenizerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (test::KimiTokenizerDir().empty()) return;
    auto loaded = Tokenizer::Load(test::KimiTokenizerDir());
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value().release();
  }
  static void TearDownTestSuite() { delete tokenizer_; }

  void SetUp() override {
    if (test::KimiTokenizerDir().empty()) {
      GTEST_SKIP() << "the Kimi K2.5 tokenizer is absent; BALTORO_TEST_DATA names the folder above "
                      "kimi-k2.5-tokenizer";
    }
    ASSERT_NE(tokenizer_, nullptr);
  }

  static inline const Tokenizer* tokenizer_ = nullptr;
};

TEST_F(KimiTokenizerTest, GivesThePublishedIds) {
  const std::vector<std::pair<std::string, std::vector<TokenId>>> golden = {
      {"hello", {22931}},
      {"Hello, world!", {19180, 11, 2695, 0}},
      {"你好世界", {33845, 2243}},
      {"中文English混排123456", {16717, 44372, 5239, 2062, 6694, 12972}},
      {"  leading spaces\n\n\tTab", {220, 8134, 14803, 382, 197, 11855}},
      {"I'm DON'T we'LL", {17172, 92629, 64833, 645, 6, 5847}},
      {"foo_bar.baz()", {10570, 30242, 1948, 1791, 539}},
      {"3.14159 1234567", {18, 13, 18702, 6276, 220, 6694, 12972, 22}},
      {"😀 emoji", {134750, 222, 68369}},
      {"café naïve", {122583, 1941, 7915, 44187, 367}},
      {"カタカナ ひらがな", {26121, 21449, 26121, 42125, 220, 127935, 16800, 10389, 11839}},
      {" \n \n", {24885}},
      {"a\u3000b", {64, 14224, 65}},
      {"functions.get_weather:0", {41937, 1150, 21055, 2800, 25, 15}},
      {"system", {14062}},
      {"user", {2482}},
      {"assistant", {69702}},
      {"tool", {20960}},
      {"tool_declare", {20960, 35556, 677}},
      {"image", {4017}},
      {"video", {22782}},
      {"\n", {198}},
      {"<|im_end|>", {27, 91, 348, 11129, 91, 29}},
  };
  for (const auto& [text, ids] : golden) EXPECT_EQ(tokenizer_->Encode(text), ids) << text;
  EXPECT_EQ(tokenizer_->EncodeWithSpecials("<think></think>"),
            (std::vector<TokenId>{163606, 163607}));
  EXPECT_EQ(tokenizer_->EncodeWithSpecials("<|kimi_k25_video_placeholder|>").size(), 10u);
}

TEST_F(KimiTokenizerTest, KnowsItsAddedTokens) {
  EXPECT_EQ(tokenizer_->vocab_size(), 163840);
  EXPECT_EQ(tokenizer_->SpecialId("[BOS]"), 163584);
  EXPECT_EQ(tokenizer_->SpecialId("<|im_end|>"), 163586);
  EXPECT_EQ(tokenizer_->SpecialId("<|reserved_token_163589|>"), 163589);
  EXPECT_EQ(tokenizer_->SpecialId("[PAD]"), 163839);
  EXPECT_TRUE(tokenizer_->IsControl(163601));
  EXPECT_FALSE(tokenizer_->IsControl(163606));
}

TEST_F(KimiTokenizerTest, TheDefaultNamesAreThoseOfTheFile) {
  test::TempDir folder;
  std::filesystem::copy(test::KimiTokenizerDir() + "/tiktoken.model", folder.path());

  const auto plain = Tokenizer::Load(folder.path());

  ASSERT_TRUE(plain.ok()) << plain.status().message();
  for (TokenId id = 163584; id < 163840; ++id) {
    EXPECT_EQ(plain.value()->TokenBytes(id), tokenizer_->TokenBytes(id));
    EXPECT_EQ(plain.value()->IsControl(id), tokenizer_->IsControl(id)) << id;
  }
}

TEST_F(KimiTokenizerTest, EqualsTiktokenOnTheRecordedTexts) {
  const auto file = ReadFile(test::KimiTokenizerDir() + "/golden_tokens.jsonl");
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::string_view rest = file.value();
  int lines = 0;
  while (!rest.empty()) {
    const size_t length = std::min(rest.find('\n'), rest.size());
    const auto line = ParseJson(rest.substr(0, length));
    ASSERT_TRUE(line.ok()) << line.status().message();
    rest.remove_prefix(std::min(length + 1, rest.size()));
    ++lines;
    const auto text = line.value()["text"].get<std::string>();
    const auto ids = line.value()["ids"].get<std::vector<TokenId>>();

    EXPECT_EQ(tokenizer_->Encode(text), ids) << "line " << lines << ": " << text;
    EXPECT_EQ(tokenizer_->Decode(ids, false), text) << "line " << lines;
    StreamDetokenizer stream(*tokenizer_, true);
    std::string streamed;
    for (const TokenId id : ids) streamed += stream.Push(id);
    EXPECT_EQ(streamed + stream.Finish(), text) << "line " << lines;
  }
  EXPECT_EQ(lines, 1250);
}

TEST_F(KimiTokenizerTest, TheBytesOfEveryTokenComeBack) {
  int differing = 0;
  for (TokenId id = 0; id < 163584; ++id) {
    const std::string_view bytes = tokenizer_->TokenBytes(id);
    if (!IsValidUtf8(bytes)) continue;  // may be cut by the scanner
    std::string joined;
    for (const TokenId part : tokenizer_->Encode(bytes)) joined += tokenizer_->TokenBytes(part);
    differing += joined != bytes;
  }
  EXPECT_EQ(differing, 0);
}

// Run on a thread with 256 KiB of stack, where recursion over a long piece could not end well.
TEST_F(KimiTokenizerTest, LongRunsNeedLittleStack) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  ASSERT_EQ(pthread_attr_setstacksize(&attributes, 256 * 1024), 0);
  pthread_t thread;
  const auto run = [](void* tokenizer) -> void* {
    for (const char* unit : {"a", "^", " ", "\n", "中", "😀", "\u0301", "あ", "\x80", "1"}) {
      std::string text;
      while (text.size() < (1 << 20)) text += unit;
      const auto* kimi = static_cast<const Tokenizer*>(tokenizer);
      std::string joined;
      for (const TokenId id : kimi->Encode(text)) joined += kimi->TokenBytes(id);
      EXPECT_TRUE(joined == text) << unit;
    }
    return nullptr;
  };
  ASSERT_EQ(pthread_create(&thread, &attributes, run, const_cast<Tokenizer*>(tokenizer_)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
}

TEST_F(KimiTokenizerTest, ThreadsShareOne) {
  const std::string text = "Threads share one tokenizer: 中文 and 😀 and " + std::string(500, 'q');
  const std::vector<TokenId> want = tokenizer_->Encode(text);

  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int& count : wrong) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) count += tokenizer_->Encode(text) != want;
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace baltoro
