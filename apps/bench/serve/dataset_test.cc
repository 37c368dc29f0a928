#include "bench/serve/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/base64.h"
#include "media/decode_picture.h"

#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

class DatasetTest : public ::testing::Test {
 protected:
  DatasetTest()
      : tokenizer_(Tokenizer::Load("pocket/model").value()),
        template_(ChatTemplate::LoadFromDir("pocket/model").value()),
        dir_(testing::TempDir() + "baltoro-dataset-" +
             testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::create_directories(dir_);
    options_.prompts = 20;
  }
  ~DatasetTest() override { std::filesystem::remove_all(dir_); }

  Result<Dataset> Build(bool chat = false) {
    return BuildDataset(options_, chat,
                        {.tokenizer = tokenizer_.get(), .chat_template = template_.get()});
  }
  Dataset Built(bool chat = false) {
    Result<Dataset> out = Build(chat);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return out.ok() ? std::move(out).value() : Dataset();
  }
  void Write(const std::string& name, const std::string& text) {
    options_.path = dir_ + "/" + name;
    std::ofstream(options_.path) << text;
  }
  // A completion's prompt.
  static std::string Prompt(const BenchSession& session) {
    return ParseJson(session.text).value().get<std::string>();
  }
  int64_t Tokens(const BenchSession& session) {
    return std::ssize(tokenizer_->Encode(Prompt(session)));
  }

  // The URLs of a chat message's pictures, which follow its text.
  static std::vector<std::string> Pictures(const BenchSession& session) {
    const Json content = ParseJson(session.text).value()["content"];
    std::vector<std::string> urls;
    if (content.is_string()) return urls;
    EXPECT_EQ(content[0]["type"], "text");
    for (size_t i = 1; i < content.size(); ++i) {
      EXPECT_EQ(content[i]["type"], "image_url");
      urls.push_back(content[i]["image_url"]["url"].get<std::string>());
    }
    return urls;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;
  std::string dir_;
  DatasetOptions options_;
};

TEST_F(DatasetTest, RandomPromptsHaveExactlyTheirLength) {
  options_.random_input = 100;
  options_.random_output = 10;
  options_.random_prefix = 30;
  options_.range_ratio = 0.3;
  const Dataset data = Built();
  ASSERT_EQ(data.sessions.size(), 20U);
  std::set<int64_t> lengths;
  const std::string first = Prompt(data.sessions[0]);
  for (const BenchSession& session : data.sessions) {
    const BenchTurn& turn = session.turns[0];
    EXPECT_EQ(turn.text_bytes, session.text.size());
    EXPECT_EQ(Tokens(session), turn.prompt_tokens);
    EXPECT_GE(turn.prompt_tokens, 30 + 70);
    EXPECT_LE(turn.prompt_tokens, 30 + 130);
    EXPECT_GE(turn.output_tokens, 7);
    EXPECT_LE(turn.output_tokens, 13);
    EXPECT_EQ(Prompt(session).substr(0, 60), first.substr(0, 60));  // the prefix
    lengths.insert(turn.prompt_tokens);
  }
  EXPECT_GT(lengths.size(), 5U);
  EXPECT_NE(Prompt(data.sessions[1]), first);
  EXPECT_EQ(Prompt(Built().sessions[0]), first);
  options_.seed = 1;
  EXPECT_NE(Prompt(Built().sessions[0]), first);
}

TEST_F(DatasetTest, LengthsAreExactWithTheRealVocabulary) {
  const std::string dir = test::KimiTokenizerDir();
  if (dir.empty()) GTEST_SKIP() << "the Kimi K2.5 tokenizer is absent";
  tokenizer_ = Tokenizer::Load(dir).value();
  options_.random_input = 1000;
  for (const BenchSession& session : Built().sessions) EXPECT_EQ(Tokens(session), 1000);
}

TEST_F(DatasetTest, PrefixesAreShared) {
  options_.name = "prefix_repetition";
  options_.prefixes = 3;
  const Dataset data = Built();
  EXPECT_EQ(data.sessions.size(), 18U);
  EXPECT_THAT(data.notices.at(0), HasSubstr("6 for each of 3"));
  std::map<std::string, int> prefixes;
  for (const BenchSession& session : data.sessions) {
    EXPECT_EQ(Tokens(session), 512);
    ++prefixes[Prompt(session).substr(0, 400)];
  }
  EXPECT_EQ(prefixes.size(), 3U);
  options_.prefixes = 21;
  EXPECT_THAT(Build().status().message(), HasSubstr("--prefix-repetition-num-prefixes"));
}

TEST_F(DatasetTest, ShareGptTakesFittingPairs) {
  options_.name = "sharegpt";
  const std::string long_enough = "one two three four five six";
  Write("s.json", R"([{"id":"1","conversations":[{"from":"human","value":")" + long_enough +
                      R"("},{"from":"gpt","value":"an answer of some words, at least four"}]},
  {"conversations":[{"from":"human","value":"alone: no answer to this"}]},
  {"conversations":[{"from":"human","value":"x"},{"from":"gpt","value":"too short a prompt, is it not"}]}])");
  const Dataset data = Built();
  ASSERT_EQ(data.sessions.size(), 20U);  // the same one again
  EXPECT_EQ(Prompt(data.sessions[7]), long_enough);
  EXPECT_EQ(data.sessions[0].turns[0].output_tokens,
            std::ssize(tokenizer_->Encode("an answer of some words, at least four")));
  options_.oversample = false;
  options_.sharegpt_output = 5;
  EXPECT_EQ(Built().sessions.size(), 1U);
  EXPECT_EQ(Built().sessions[0].turns[0].output_tokens, 5);
  Write("s.json", R"({"conversations":[]})");
  EXPECT_THAT(Build().status().message(), HasSubstr("as ShareGPT's"));
}

TEST_F(DatasetTest, CustomLinesGoThroughTheTemplateForCompletions) {
  options_.name = "custom";
  options_.shuffle = options_.oversample = false;
  Write("c.jsonl",
        "{\"prompt\":\"Say \\\"hi\\\".\",\"output_tokens\":9}\n\n{\"prompt\":\"two\"}\n");
  const Dataset data = Built();
  ASSERT_EQ(data.sessions.size(), 2U);
  EXPECT_THAT(Prompt(data.sessions[0]), HasSubstr("Say \"hi\".<|im_end|>"));
  EXPECT_EQ(data.sessions[0].turns[0].output_tokens, 256);
  EXPECT_EQ(Built(true).sessions[0].text, R"({"role":"user","content":"Say \"hi\"."})");
  options_.chat_template = false;
  EXPECT_EQ(Prompt(Built().sessions[1]), "two");
  options_.custom_output = -1;
  EXPECT_THAT(Build().status().message(), HasSubstr("c.jsonl:3: --custom-output-len -1 needs"));
  options_.prompts = 1;
  EXPECT_EQ(Built().sessions[0].turns[0].output_tokens, 9);
  Write("c.jsonl", "{\"text\":1}");
  EXPECT_THAT(Build().status().message(), HasSubstr("c.jsonl:1: there is no text \"prompt\""));
}

TEST_F(DatasetTest, RepeatedPromptsHaveABound) {
  options_.name = "custom";
  options_.chat_template = false;
  options_.prompts = 1'000'000;
  Write("c.jsonl", "{\"prompt\":\"" + std::string(5000, 'x') + "\"}");
  EXPECT_THAT(Build().status().message(), HasSubstr("GiB of memory; fewer --num-prompts"));
}

TEST_F(DatasetTest, HfRowsOfSeveralShapesAndWhatIsNotRead) {
  options_.name = "hf";
  options_.shuffle = options_.oversample = false;
  Write(
      "rows.jsonl",
      R"({"images":["x"],"conversation":[[{"role":"user","content":"arena"}],[{"role":"assistant","content":"no"}]]}
{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"image"},{"type":"text","text":"parts"}]}]}
{"conversations":[{"from":"human","value":"gpt"}]}
{"turns":["turn","second"]}
{"question":"asked"}
{"messages":[{"role":null,"content":"of nobody"}]}
)");
  std::vector<std::string> prompts;
  options_.path = dir_;
  const Dataset data = Built();
  for (const BenchSession& session : data.sessions) prompts.push_back(Prompt(session));
  EXPECT_EQ(prompts,
            (std::vector<std::string>{"arena", "parts", "gpt", "turn", "asked", "of nobody"}));
  EXPECT_THAT(data.notices.at(0), HasSubstr("1 prompts have pictures, which are left out"));
  EXPECT_EQ(data.sessions[0].turns[0].output_tokens, 128);
  options_.hf_split = "train";
  EXPECT_THAT(Build().status().message(), HasSubstr("--hf-split"));
  Write("p.parquet", "PAR1");
  EXPECT_THAT(Build().status().message(), HasSubstr("ParquetFile('"));
  options_.path = "lmarena-ai/VisionArena-Chat";
  EXPECT_THAT(Build().status().message(),
              HasSubstr("`hf download --repo-type dataset lmarena-ai/VisionArena-Chat"));
}

// The signature of a GIF is enough: nothing is decoded here.
constexpr const char* kGif = "R0lGODlhAAAA";
constexpr const char* kGifUrl = "data:image/gif;base64,R0lGODlhAAAA";

TEST_F(DatasetTest, HfRowsHaveTheirFirstPictureBehindTheText) {
  options_.name = "hf";
  options_.shuffle = options_.oversample = false;
  std::ofstream(dir_ + "/one.gif", std::ios::binary) << std::string("GIF89a\0\0\0", 9);
  const std::string bytes = std::string(R"({"bytes":")") + kGif + R"(","path":null})";
  Write("rows.jsonl", R"({"images":[)" + bytes +
                          R"(,"none"],"conversation":[[{"role":"user","content":"arena"}]]}
{"image":)" + bytes + R"(,"question":"of TextVQA"}
{"image":"one.gif","question":"a path"}
{"image":{"bytes":null,"path":"one.gif"},"question":"a path in an object"}
{"image":{"src":"https://hub.example/one.gif"},"question":"a URL"}
{"image":null,"images":[],"question":"none"}
)");
  const Dataset data = Built(true);
  ASSERT_EQ(data.sessions.size(), 6U);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Pictures(data.sessions[i]), std::vector<std::string>{kGifUrl}) << i;
  }
  EXPECT_EQ(Pictures(data.sessions[4]), std::vector<std::string>{"https://hub.example/one.gif"});
  EXPECT_TRUE(Pictures(data.sessions[5]).empty());
  EXPECT_THAT(data.sessions[0].text, HasSubstr(R"("text":"arena")"));

  Write("rows.jsonl", R"({"image":"other.gif","question":"?"})");
  EXPECT_THAT(Build(true).status().message(), HasSubstr("rows.jsonl:1: image: its picture"));
  Write("rows.jsonl", R"({"image":7,"question":"?"})");
  EXPECT_THAT(Build(true).status().message(), HasSubstr("rows.jsonl:1: image: a picture is"));
}

TEST_F(DatasetTest, ADataSetOfTheHubIsFoundInItsCache) {
  options_.name = "hf";
  options_.oversample = false;
  options_.hf_cache = dir_ + "/hub";
  const std::string folder = options_.hf_cache + "/datasets--owner--name";
  std::filesystem::create_directories(folder + "/snapshots/abc/data");
  std::filesystem::create_directories(folder + "/refs");
  std::ofstream(folder + "/refs/main") << "abc";
  std::ofstream(folder + "/snapshots/abc/data/train.parquet") << "PAR1";
  options_.path = "owner/name";
  const std::string lines = folder + "/snapshots/abc/data/train.jsonl";
  EXPECT_THAT(Build().status().message(), HasSubstr("open('" + lines + "', 'w')"));
  std::ofstream(lines) << R"({"question":"asked"})";
  EXPECT_EQ(Prompt(Built().sessions.at(0)), "asked");
  options_.path = "owner/other";
  EXPECT_THAT(Build().status().message(), HasSubstr("in the cache of Hugging Face"));
}

TEST_F(DatasetTest, CustomLinesWithPicturesOfFiles) {
  options_.name = "custom_mm";
  options_.shuffle = options_.oversample = false;
  std::ofstream(dir_ + "/one.gif", std::ios::binary) << std::string("GIF89a\0\0\0", 9);
  Write("c.jsonl", R"({"prompt":"two","image_files":["one.gif",")" + dir_ + R"(/one.gif"]}
{"prompt":"none"})");
  const Dataset data = Built(true);
  EXPECT_EQ(Pictures(data.sessions[0]), (std::vector<std::string>{kGifUrl, kGifUrl}));
  EXPECT_EQ(data.sessions[1].text, R"({"role":"user","content":"none"})");
  Write("c.jsonl", R"({"prompt":"two","image_files":["c.jsonl"]})");
  EXPECT_THAT(Build(true).status().message(), HasSubstr("c.jsonl:1: image_files: its picture"));
}

TEST_F(DatasetTest, DrawnPicturesHaveTheSizesAskedFor) {
  options_.name = "random-mm";
  options_.random_input = 10;
  options_.pictures_max = 3;
  options_.picture_sizes = {{.height = 9, .width = 31, .share = 0.75},
                            {.height = 40, .width = 8, .share = 0.25}};
  const Dataset data = Built(true);
  ASSERT_EQ(data.sessions.size(), 20U);
  size_t wide = 0, all = 0, with_three = 0;
  for (const BenchSession& session : data.sessions) {
    EXPECT_EQ(session.turns[0].prompt_tokens, 10);
    const std::vector<std::string> urls = Pictures(session);
    EXPECT_LE(urls.size(), 3U);
    with_three += urls.size() == 3 ? 1 : 0;
    for (const std::string& url : urls) {
      std::string bytes;
      ASSERT_TRUE(DecodeBase64(std::string_view(url).substr(url.find(',') + 1), bytes));
      EXPECT_TRUE(url.starts_with("data:image/jpeg;base64,"));
      const Result<Rgb> picture = DecodePicture(bytes);
      ASSERT_TRUE(picture.ok()) << picture.status().message();
      const bool is_wide = picture.value().width == 31;
      EXPECT_EQ(picture.value().height, is_wide ? 9 : 40);
      wide += is_wide ? 1 : 0;
      ++all;
    }
  }
  EXPECT_GT(with_three, 0U);
  EXPECT_GT(wide, all / 2);
  EXPECT_LT(wide, all);
  EXPECT_EQ(Built(true).sessions[7].text, data.sessions[7].text);
  EXPECT_NE(data.sessions[6].text, data.sessions[7].text);
  options_.picture_sizes = {{.height = 16000, .width = 16000, .share = 1}};
  EXPECT_THAT(Build(true).status().message(), HasSubstr("GiB of memory; fewer --num-prompts"));
}

TEST_F(DatasetTest, AgentSessionsGrowAndShareTheirBeginning) {
  options_.name = "agent";
  options_.prompts = 25;
  options_.agent_turns = 10;
  options_.agent_shared = 500;
  options_.agent_context_min = 2000;
  options_.agent_context_max = 8000;
  const Dataset data = Built(true);
  ASSERT_EQ(data.sessions.size(), 3U);
  EXPECT_EQ(data.sessions[2].turns.size(), 5U);
  const Json tools = ParseJson(data.tools).value();
  ASSERT_TRUE(tools.is_array());
  for (const BenchSession& session : data.sessions) {
    EXPECT_EQ(session.text.substr(0, 1500), data.sessions[0].text.substr(0, 1500));
    for (const BenchTurn& turn : session.turns) {
      const Result<Json> messages = ParseJson("[" + session.text.substr(0, turn.text_bytes) + "]");
      ASSERT_TRUE(messages.ok()) << messages.status().message();
      EXPECT_EQ(messages.value()[0]["role"], "system");
      const std::string last = messages.value().back()["role"];
      EXPECT_TRUE(last == "user" || last == "tool") << last;
      const Result<std::vector<TextSegment>> prompt =
          template_->Render({.messages = &messages.value(), .tools = &tools});
      ASSERT_TRUE(prompt.ok()) << prompt.status().message();
      const auto tokens = static_cast<double>(tokenizer_->EncodeSegments(prompt.value()).size());
      EXPECT_NEAR(tokens, static_cast<double>(turn.prompt_tokens), 0.15 * tokens);
    }
  }
  EXPECT_GT(data.sessions[0].turns.back().prompt_tokens, 1500);
  EXPECT_EQ(data.sessions[0].turns[0].think, 0);
  EXPECT_GT(data.sessions[0].turns[1].think, 0);
}

TEST_F(DatasetTest, WithoutATokenizerTheReasonIsGiven) {
  EXPECT_THAT(BuildDataset(options_, false, {}).status().message(), HasSubstr("--tokenizer DIR"));
}

}  // namespace
}  // namespace baltoro
