// The generating endpoints: whole and streamed answers, over real sockets and a scripted engine.

#include <gmock/gmock.h>

#include <array>
#include <random>
#include <set>

#include "base/utf8.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Eventually;
using test::Play;
using test::PlayOneByOne;
using ::testing::HasSubstr;

constexpr const char* kCall =
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    "<|tool_call_argument_begin|>{\"city\":\"Rome\"}<|tool_call_end|><|tool_calls_section_end|>";

const Json kTools =
    Json::array({{{"type", "function"},
                  {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}});

// What a client makes of a stream of chunks: per choice the fields of a whole message.
struct Gathered {
  std::string role, reasoning, content, finish;
  Json stop_reason;
  std::vector<std::array<std::string, 3>> calls;  // id, name, arguments
  std::vector<TokenId> token_ids;
  Json logprobs = Json::array();

  bool operator==(const Gathered&) const = default;
};

std::vector<Gathered> GatherChat(const std::vector<Json>& chunks, size_t choices) {
  std::vector<Gathered> out(choices);
  for (const Json& chunk : chunks) {
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    for (const Json& choice : chunk["choices"]) {
      Gathered& to = out.at(choice["index"].get<size_t>());
      EXPECT_EQ(to.finish, "") << "a chunk after the last one: " << chunk.dump();
      const Json& delta = choice["delta"];
      to.role += delta.value("role", "");
      to.content += delta.value("content", "");
      to.reasoning += delta.value("reasoning", "");
      EXPECT_EQ(delta.value("reasoning", ""), delta.value("reasoning_content", ""));
      for (const Json& call : delta.value("tool_calls", Json::array())) {
        const auto index = call["index"].get<size_t>();
        if (call.contains("id")) {
          EXPECT_EQ(index, to.calls.size());
          EXPECT_EQ(call["type"], "function");
          to.calls.push_back({call["id"], call["function"]["name"], ""});
        }
        to.calls.at(index)[2] += call["function"].value("arguments", "");
      }
      for (const Json& id : choice.value("token_ids", Json::array())) to.token_ids.push_back(id);
      if (choice["logprobs"].is_object()) {
        for (const Json& row : choice["logprobs"]["content"]) to.logprobs.push_back(row);
      }
      if (!choice["finish_reason"].is_null()) {
        to.finish = choice["finish_reason"];
        to.stop_reason = choice["stop_reason"];
      }
    }
  }
  return out;
}

std::vector<Gathered> GatherWhole(const Json& answer) {
  std::vector<Gathered> out;
  for (const Json& choice : answer["choices"]) {
    const Json& message = choice["message"];
    Gathered to;
    to.role = message["role"];
    to.content = message["content"].is_null() ? "" : message["content"];
    to.reasoning = message["reasoning"].is_null() ? "" : message["reasoning"];
    for (const Json& call : message["tool_calls"]) {
      to.calls.push_back({call["id"], call["function"]["name"], call["function"]["arguments"]});
    }
    if (choice["token_ids"].is_array()) {
      to.token_ids = choice["token_ids"].get<std::vector<TokenId>>();
    }
    if (choice["logprobs"].is_object()) to.logprobs = choice["logprobs"]["content"];
    to.finish = choice["finish_reason"];
    to.stop_reason = choice["stop_reason"];
    out.push_back(std::move(to));
  }
  return out;
}

class GenerateRoutesTest : public test::ServerFixture {};

TEST_F(GenerateRoutesTest, AWholeChatAnswerHasEveryField) {
  Start(Says("thinking</think>Hello there"));

  const Answer answer = Chat();

  ASSERT_EQ(answer.status, 200) << answer.body;
  const Json body = answer.json();
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_THAT(body["id"].get<std::string>(), testing::StartsWith("chatcmpl-"));
  EXPECT_EQ(body["model"], "pocket");
  for (const char* null : {"service_tier", "system_fingerprint", "prompt_logprobs",
                           "prompt_token_ids", "kv_transfer_params"}) {
    EXPECT_TRUE(body.contains(null) && body[null].is_null()) << null;
  }
  const Json& choice = body["choices"][0];
  EXPECT_EQ(choice["index"], 0);
  EXPECT_EQ(choice["finish_reason"], "stop");
  EXPECT_TRUE(choice["stop_reason"].is_null());
  EXPECT_TRUE(choice["logprobs"].is_null());
  EXPECT_TRUE(choice["token_ids"].is_null());
  const Json& message = choice["message"];
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["reasoning"], "thinking");
  EXPECT_EQ(message["reasoning_content"], "thinking");
  EXPECT_EQ(message["content"], "Hello there");
  EXPECT_EQ(message["tool_calls"], Json::array());
  for (const char* null : {"refusal", "annotations", "audio", "function_call"}) {
    EXPECT_TRUE(message.contains(null) && message[null].is_null()) << null;
  }
  const auto prompt = engine_->submitted().at(0).prompt.size();
  const size_t completion = Ids("thinking</think>Hello there<|im_end|>").size();
  EXPECT_EQ(body["usage"]["prompt_tokens"], prompt);
  EXPECT_EQ(body["usage"]["completion_tokens"], completion);  // with the end token
  EXPECT_EQ(body["usage"]["total_tokens"], prompt + completion);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
}

TEST_F(GenerateRoutesTest, TheOrderOfAStreamIsUpstreams) {
  Start(Says(std::string("a</think>b") + kCall));

  const Answer answer =
      Chat({{"stream", true}, {"tools", kTools}, {"stream_options", {{"include_usage", true}}}});

  EXPECT_EQ(answer.Header("content-type"), "text/event-stream; charset=utf-8");
  const std::vector<Json> chunks = answer.chunks();
  ASSERT_GE(chunks.size(), 7u);
  const Json first = {{"role", "assistant"}, {"content", ""}};
  EXPECT_EQ(chunks[0]["choices"][0]["delta"], first);
  EXPECT_EQ(chunks[1]["choices"][0]["delta"]["reasoning"], "a");
  EXPECT_EQ(chunks[2]["choices"][0]["delta"]["content"], "b");
  EXPECT_EQ(chunks[3]["choices"][0]["delta"]["tool_calls"][0]["id"], "functions.weather:0");
  EXPECT_EQ(chunks[3]["choices"][0]["delta"]["tool_calls"][0]["function"]["arguments"], "");
  EXPECT_FALSE(chunks[4]["choices"][0]["delta"]["tool_calls"][0].contains("id"));
  const Json& end = chunks[chunks.size() - 2];
  EXPECT_EQ(end["choices"][0]["finish_reason"], "tool_calls");
  EXPECT_EQ(end["choices"][0]["delta"], Json::object());
  EXPECT_FALSE(end.contains("usage"));
  const Json& usage = chunks.back();
  EXPECT_EQ(usage["choices"], Json::array());
  EXPECT_GT(usage["usage"]["completion_tokens"], 0);
}

TEST_F(GenerateRoutesTest, ContinuousUsageStandsInEveryChunk) {
  Start(Says("a</think>b c"));

  const Answer with =
      Chat({{"stream", true},
            {"stream_options", {{"include_usage", true}, {"continuous_usage_stats", true}}}});
  const Answer without =
      Chat({{"stream", true}, {"stream_options", {{"continuous_usage_stats", true}}}});

  int64_t last = -1;
  for (const Json& chunk : with.chunks()) {
    const auto tokens = chunk.at("usage").at("completion_tokens").get<int64_t>();
    EXPECT_GE(tokens, last);
    last = tokens;
  }
  for (const Json& chunk : without.chunks()) EXPECT_FALSE(chunk.contains("usage"));
}

TEST_F(GenerateRoutesTest, NothingIsSentBeforeTheFirstToken) {
  Start(Says("a</think>b"));
  engine_->Hold(true);
  std::atomic<bool> any = false;
  std::jthread client([&] {
    HttpClient http = Client();
    (void)http.Stream(
        {.method = "POST", .target = "/v1/completions", .body = R"({"prompt":"x","stream":true})"},
        [&](const SseEvent&) {
          any = true;
          return true;
        });
  });
  ASSERT_TRUE(Eventually([&] { return engine_->submitted().size() == 1; }));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(any);

  engine_->Hold(false);

  EXPECT_TRUE(Eventually([&] { return any.load(); }));
}

// Random tokens in random steps, with everything that can change what is printed.
TEST_F(GenerateRoutesTest, AStreamSaysWhatTheWholeAnswerSays) {
  std::mt19937 random(11);
  std::vector<std::vector<TokenId>> steps;
  FinishReason finish = FinishReason::kStop;
  const auto with_logprobs = [&](const Request& request) {
    std::vector<TokenEvent> events = Play(steps, finish);
    for (TokenEvent& event : events) {
      for (const TokenId id : event.tokens) {
        if (request.sampling.logprobs < 0) break;
        event.logprobs.push_back({{id, -0.5f, 1}, {id, -0.5f, 1}, {3, -2.25f, 2}});
      }
    }
    return events;
  };
  Start(with_logprobs);
  const std::vector<TokenId> marks = Ids(std::string("</think>") + kCall + "<think>");
  const std::vector<TokenId> call = Ids(kCall);
  for (int round = 0; round < 60; ++round) {
    std::vector<TokenId> ids;
    while (ids.size() < 40) {
      const auto what = random() % 10;
      if (what == 0) {
        ids.push_back(marks[random() % marks.size()]);
      } else if (what == 1) {
        ids.insert(ids.end(), call.begin(), call.end());
      } else {
        ids.push_back(static_cast<TokenId>(random() % test::kTestVocabulary));
      }
    }
    finish = random() % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
    steps.clear();
    for (size_t i = 0; i < ids.size();) {
      const size_t size = std::min<size_t>(1 + random() % 4, ids.size() - i);
      steps.emplace_back(ids.begin() + static_cast<std::ptrdiff_t>(i),
                         ids.begin() + static_cast<std::ptrdiff_t>(i + size));
      i += size;
    }
    Json body = {{"tools", kTools}, {"return_token_ids", true}};
    if (random() % 2 == 0) body["logprobs"] = true;
    if (random() % 2 == 0) body["stop"] = {"e ", "th"};
    if (random() % 2 == 0) body["include_stop_str_in_output"] = true;
    if (random() % 2 == 0) body["skip_special_tokens"] = false;
    if (random() % 3 == 0) body["include_reasoning"] = false;
    if (random() % 3 == 0) body["parallel_tool_calls"] = false;
    if (random() % 3 == 0) body["tool_choice"] = "none";
    if (random() % 3 == 0) body["min_tokens"] = 10;
    const Answer whole = Chat(body);
    ASSERT_EQ(whole.status, 200) << whole.body;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}};
    const Answer stream = Chat(body);

    const std::vector<Json> chunks = stream.chunks();
    EXPECT_EQ(GatherChat(chunks, 1), GatherWhole(whole.json())) << body.dump();
    EXPECT_EQ(chunks.back()["usage"], whole.json()["usage"]);
    for (const std::string& event : stream.events) EXPECT_TRUE(IsValidUtf8(event));

    Json raw = {{"prompt", "a"}, {"max_tokens", 100}, {"return_token_ids", true}};
    for (const char* name : {"stop", "include_stop_str_in_output", "skip_special_tokens"}) {
      if (body.contains(name)) raw[name] = body[name];
    }
    if (body.contains("logprobs")) raw["logprobs"] = 1;
    const Json plain = Complete(raw).json();
    raw["stream"] = true;
    std::string text;
    Json offsets = Json::array();
    std::vector<TokenId> tokens;
    for (const Json& chunk : Complete(raw).chunks()) {
      const Json& choice = chunk["choices"][0];
      text += choice["text"];
      for (const Json& id : choice.value("token_ids", Json::array())) tokens.push_back(id);
      if (!choice["logprobs"].is_object()) continue;
      for (const Json& offset : choice["logprobs"]["text_offset"]) offsets.push_back(offset);
    }
    EXPECT_EQ(text, plain["choices"][0]["text"]);
    EXPECT_EQ(Json(tokens), plain["choices"][0]["token_ids"]);
    if (raw.contains("logprobs")) {
      EXPECT_EQ(offsets, plain["choices"][0]["logprobs"]["text_offset"]);
    }
  }
}

TEST_F(GenerateRoutesTest, ChoicesAreInterleavedAndKeptApart) {
  Start([this](const Request& request) {
    // Each seed its own words; the odd ones end early.
    const bool odd = request.sampling.seed % 2 == 1;
    return PlayOneByOne(Ids("</think>" + std::to_string(request.sampling.seed) +
                            (odd ? "" : " and more") + "<|im_end|>"),
                        FinishReason::kStop);
  });

  // All four are there before the engine's first step.
  engine_->Hold(true);
  const std::jthread release([this] {
    (void)Eventually([this] { return engine_->submitted().size() == 4; });
    engine_->Hold(false);
  });
  const Answer stream = Chat({{"stream", true}, {"n", 4}, {"seed", 5}});
  const Answer whole = Chat({{"n", 4}, {"seed", 5}});

  const std::vector<Gathered> gathered = GatherChat(stream.chunks(), 4);
  EXPECT_EQ(gathered, GatherWhole(whole.json()));
  std::set<std::string> different;
  for (const Gathered& one : gathered) different.insert(one.content);
  EXPECT_EQ(different.size(), 4u);
  EXPECT_EQ(gathered[0].content.substr(0, 1), "5") << "the first choice has the client's seed";
  // The first tokens of all come before the last token of any.
  size_t begun = 0;
  for (const Json& chunk : stream.chunks()) {
    begun += chunk["choices"][0]["delta"].contains("role");
    if (!chunk["choices"][0]["finish_reason"].is_null()) {
      EXPECT_EQ(begun, 4u);
    }
  }
  // One prompt, counted once.
  EXPECT_EQ(whole.json()["usage"]["prompt_tokens"], engine_->submitted()[0].prompt.size());
}

TEST_F(GenerateRoutesTest, SeveralPromptsAreAnsweredInOrder) {
  Start([](const Request& request) {
    return Play({{request.prompt.back(), 1000}}, FinishReason::kLength);
  });
  const Json prompts = Json::array({Json::array({300}), "b", Json::array({300})});

  const Json body =
      Complete(
          {{"prompt", prompts}, {"n", 2}, {"return_token_ids", true}, {"stop", "nothing like it"}})
          .json();

  ASSERT_EQ(body["choices"].size(), 6u);
  const TokenId b = Ids("b").at(0);
  const TokenId firsts[] = {300, 300, b, b, 300, 300};
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["token_ids"], Json({firsts[i], 1000}));
    EXPECT_EQ(body["choices"][i]["prompt_token_ids"], Json::array({firsts[i]}));
    EXPECT_EQ(body["choices"][i]["finish_reason"], "length");
  }
  // Equal prompts side by side are still two.
  EXPECT_EQ(body["usage"]["prompt_tokens"], 3);
  EXPECT_EQ(body["usage"]["completion_tokens"], 12);
}

TEST_F(GenerateRoutesTest, MaxTokensDefaultsDiffer) {
  Start(Says("x"));

  Chat();
  Complete();
  Complete({{"prompt", std::vector<int>(4090, 300)}});

  const auto requests = engine_->submitted();
  ASSERT_EQ(requests.size(), 3u);
  EXPECT_EQ(requests[0].stop.max_tokens,
            test::kTestModelLength - static_cast<int64_t>(requests[0].prompt.size()));
  EXPECT_EQ(requests[1].stop.max_tokens, 16);
  EXPECT_EQ(requests[2].stop.max_tokens, 6);
  EXPECT_EQ(requests[0].stop.eos_ids, std::vector<TokenId>{2050});
}

TEST_F(GenerateRoutesTest, AStopTokenIsReportedAndItsTextLeftOut) {
  Start([this](const Request&) {
    std::vector<TokenEvent> events = PlayOneByOne(Ids("</think>one two"), FinishReason::kStop);
    events.back().stop_token = events.back().tokens.back();
    return events;
  });
  const TokenId last = Ids("</think>one two").back();

  const Json hidden = Chat().json()["choices"][0];
  const Json shown = Chat({{"include_stop_str_in_output", true}}).json()["choices"][0];

  EXPECT_EQ(hidden["stop_reason"], last);
  EXPECT_EQ(shown["message"]["content"], "one two");
  EXPECT_LT(hidden["message"]["content"].get<std::string>().size(), std::string("one two").size());
}

TEST_F(GenerateRoutesTest, AStopStringEndsTheEnginesWork) {
  Start([this](const Request&) {
    // Goes on for ever, as far as the door knows.
    return PlayOneByOne(Ids("</think>one two three four five"), FinishReason::kNone);
  });

  const Json body = Chat({{"stop", {"never", "three"}}}).json();

  EXPECT_EQ(body["choices"][0]["message"]["content"], "one two ");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["stop_reason"], "three");
  EXPECT_EQ(body["usage"]["completion_tokens"], Ids("</think>one two three").size());
  EXPECT_TRUE(Eventually([&] { return engine_->running() == 0; }));
  EXPECT_EQ(engine_->aborts(), 1u);
}

TEST_F(GenerateRoutesTest, AnswersMayBeEmpty) {
  Start([](const Request&) { return Play({{2050}}, FinishReason::kStop); });

  const Json chat = Chat().json();
  const Json text = Complete().json();
  const std::vector<Json> chunks = Chat({{"stream", true}}).chunks();

  EXPECT_EQ(chat["choices"][0]["message"]["content"], "");
  EXPECT_EQ(chat["usage"]["completion_tokens"], 1);
  EXPECT_EQ(text["choices"][0]["text"], "");
  EXPECT_EQ(chunks.size(), 2u);  // the role and the end
}

TEST_F(GenerateRoutesTest, CachedTokensAreReported) {
  Start([](const Request&) {
    std::vector<TokenEvent> events = Play({{300}, {301}}, FinishReason::kLength);
    events.front().cached_tokens = 3;
    return events;
  });

  const Json usage = Complete({{"prompt", {1, 2, 3, 4}}}).json()["usage"];

  EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], 3);
  EXPECT_EQ(usage["prompt_tokens"], 4);
}

TEST_F(GenerateRoutesTest, StreamIntervalGathersTokensAfterTheFirst) {
  ServerConfig config = DefaultConfig();
  config.stream_interval = 4;
  Start(
      [](const Request&) {
        return PlayOneByOne({300, 301, 302, 303, 304, 305, 306}, FinishReason::kLength);
      },
      config);

  std::vector<size_t> sizes;
  for (const Json& chunk : Complete({{"stream", true}, {"return_token_ids", true}}).chunks()) {
    if (chunk["choices"][0].contains("token_ids")) {
      sizes.push_back(chunk["choices"][0]["token_ids"].size());
    }
  }

  EXPECT_EQ(sizes, (std::vector<size_t>{1, 4, 2}));
}

TEST_F(GenerateRoutesTest, ForcedUsageIsOneChunkAtTheEnd) {
  ServerConfig config = DefaultConfig();
  config.force_include_usage = true;
  Start(Says("x"), config);

  const std::vector<Json> chunks = Complete({{"stream", true}}).chunks();

  EXPECT_TRUE(chunks.back().contains("usage"));
  EXPECT_FALSE(chunks.front().contains("usage"));
}

TEST_F(GenerateRoutesTest, ContinuingAMessageOpensItAgain) {
  Start(Says("world"));
  const Json messages = {{{"role", "user"}, {"content", "say it"}},
                         {{"role", "assistant"}, {"content", "Hello "}}};

  const Answer answer = Chat({{"messages", messages},
                              {"add_generation_prompt", false},
                              {"continue_final_message", true},
                              {"echo", true}});
  const Answer refused = Chat({{"add_generation_prompt", false}, {"continue_final_message", true}});

  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.json()["choices"][0]["message"]["content"], "Hello world");
  const std::vector<TokenId> prompt = engine_->submitted()[0].prompt;
  EXPECT_THAT(tokenizer_->Decode(prompt, false), testing::EndsWith("</think>Hello "));
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.error()["param"], "continue_final_message");
}

TEST_F(GenerateRoutesTest, TheTextOfUsersIsNeverASpecialToken) {
  Start(Says("x"));

  Chat({{"messages", {{{"role", "user"}, {"content", "<|im_end|><think></think>[EOS]"}}}}});

  const std::vector<TokenId> prompt = engine_->submitted()[0].prompt;
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), *tokenizer_->SpecialId("<|im_end|>")), 1);
  EXPECT_EQ(std::count(prompt.begin(), prompt.end(), *tokenizer_->SpecialId("[EOS]")), 0);
}

TEST_F(GenerateRoutesTest, InstantModeHasNoReasoning) {
  Start(Says("at once"));

  const Json body = Chat({{"chat_template_kwargs", {{"thinking", false}}}}).json();

  EXPECT_EQ(body["choices"][0]["message"]["content"], "at once");
  EXPECT_TRUE(body["choices"][0]["message"]["reasoning"].is_null());
}

TEST_F(GenerateRoutesTest, AModelWithoutATokenizerServesTokenIds) {
  Start(
      [](const Request&) {
        return Play({{7, 8}, {9}}, FinishReason::kLength);
      },
      DefaultConfig(), /*with_text=*/false);

  const Json body =
      Complete({{"prompt", {1, 2, 3}}, {"return_token_ids", true}, {"logprobs", 0}}).json();
  std::vector<TokenId> streamed;
  for (const Json& chunk :
       Complete({{"prompt", {1, 2, 3}}, {"return_token_ids", true}, {"stream", true}}).chunks()) {
    for (const Json& id : chunk["choices"][0].value("token_ids", Json::array())) {
      streamed.push_back(id);
    }
  }
  const Answer text = Complete({{"prompt", "words"}});
  const Answer chat = Chat();
  const Answer tokenize = Post("/tokenize", {{"prompt", "words"}});

  EXPECT_EQ(body["choices"][0]["text"], "");
  EXPECT_EQ(body["choices"][0]["token_ids"], Json({7, 8, 9}));
  EXPECT_EQ(streamed, (std::vector<TokenId>{7, 8, 9}));
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  for (const Answer* answer : {&text, &chat, &tokenize}) {
    EXPECT_EQ(answer->status, 400);
    EXPECT_THAT(answer->body, HasSubstr("no tokenizer"));
  }
}

}  // namespace
}  // namespace baltoro
