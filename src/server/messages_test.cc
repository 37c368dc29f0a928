// /v1/messages over real sockets and a scripted engine.

#include <gmock/gmock.h>

#include <random>

#include "server/messages_shape.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Play;
using test::PlayOneByOne;
using ::testing::HasSubstr;

constexpr const char* kCall =
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    "<|tool_call_argument_begin|>{\"city\":\"Rome\"}<|tool_call_end|><|tool_calls_section_end|>";

Json WeatherTool() {
  return Json::array({{{"name", "weather"}, {"input_schema", {{"type", "object"}}}}});
}

class MessagesTest : public test::ServerFixture {
 protected:
  Answer Ask(Json extra = Json::object()) const {
    if (!extra.contains("messages")) {
      extra["messages"] = {{{"role", "user"}, {"content", "Hello!"}}};
    }
    if (!extra.contains("max_tokens")) extra["max_tokens"] = 500;
    return Post("/v1/messages", extra);
  }
  std::vector<TokenId> LastPrompt() const { return engine_->submitted().back().prompt; }
};

// The message that a client puts together from the events of a stream. Checks their order.
Json Gathered(const Answer& answer) {
  Json message;
  bool open = false, stopped = false;
  for (const std::string& text : answer.events) {
    const Json event = ParseJson(text).value();
    const std::string type = event["type"];
    EXPECT_FALSE(stopped) << text;
    if (type == "message_start") {
      EXPECT_TRUE(message.is_null());
      message = event["message"];
    } else if (type == "content_block_start") {
      EXPECT_FALSE(open);
      open = true;
      EXPECT_EQ(event["index"], message["content"].size());
      message["content"].push_back(event["content_block"]);
      if (event["content_block"]["type"] == "tool_use") message["content"].back()["input"] = "";
    } else if (type == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(event["index"], message["content"].size() - 1);
      Json& block = message["content"].back();
      const Json& delta = event["delta"];
      for (const auto& [from, to] : {std::pair{"text", "text"},
                                     {"thinking", "thinking"},
                                     {"signature", "signature"},
                                     {"partial_json", "input"}}) {
        if (delta.contains(from)) block[to].get_ref<std::string&>() += delta[from];
      }
    } else if (type == "content_block_stop") {
      EXPECT_TRUE(std::exchange(open, false));
      Json& block = message["content"].back();
      if (block["type"] == "tool_use") {
        const std::string arguments = block["input"];
        const Result<Json> input = ParseJson(arguments.empty() ? "{}" : arguments);
        const bool whole = input.ok() && input.value().is_object();
        block["input"] = whole ? input.value() : Json{{"INVALID_JSON", arguments}};
      }
    } else if (type == "message_delta") {
      EXPECT_FALSE(open);
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    } else if (type == "message_stop") {
      stopped = true;
    } else {
      EXPECT_EQ(type, "ping");
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

TEST_F(MessagesTest, AnAnswerHasBlocksInTheOrderOfTheModel) {
  Start([this](const Request&) {
    return PlayOneByOne(Ids(std::string("I think.</think>Let me see.") + kCall + "<|im_end|>"),
                        FinishReason::kStop);
  });
  const Json answer = Ask({{"tools", WeatherTool()}}).json();
  EXPECT_EQ(answer["type"], "message");
  EXPECT_EQ(answer["role"], "assistant");
  EXPECT_EQ(answer["model"], "pocket");
  EXPECT_THAT(answer["id"].get<std::string>(), ::testing::StartsWith("msg_"));
  ASSERT_EQ(answer["content"].size(), 3u) << answer.dump();
  EXPECT_EQ(answer["content"][0]["thinking"], "I think.");
  EXPECT_EQ(answer["content"][0]["signature"].get<std::string>().size(), 64u);
  EXPECT_EQ(answer["content"][1], (Json{{"type", "text"}, {"text", "Let me see."}}));
  EXPECT_EQ(answer["content"][2], (Json{{"type", "tool_use"},
                                        {"id", "functions_weather_0"},
                                        {"name", "weather"},
                                        {"input", {{"city", "Rome"}}}}));
  EXPECT_EQ(answer["stop_reason"], "tool_use");
  EXPECT_EQ(answer["stop_sequence"], nullptr);
}

TEST_F(MessagesTest, StreamedEqualsWholeForAnythingThatAModelMaySay) {
  const std::vector<std::string> pieces = {"Plain text. ",
                                           "</think>",
                                           "naïve \xF0\x9F\x98\x80 ",
                                           "STOP",
                                           "<think>",
                                           kCall,
                                           "<|tool_calls_section_begin|>",
                                           "<|tool_call_begin|>functions.f:7",
                                           "<|tool_call_argument_begin|>",
                                           "{\"a\":[1,",
                                           "2]}",
                                           "<|tool_call_end|>",
                                           "<|tool_calls_section_end|>",
                                           " \n"};
  std::mt19937 random(7);
  std::vector<TokenId> said;
  FinishReason finish = FinishReason::kStop;
  Start([&](const Request&) {
    std::vector<std::vector<TokenId>> steps;
    std::mt19937 cut(said.size());
    for (size_t i = 0; i < said.size();) {
      const size_t n = std::min<size_t>(said.size() - i, 1 + cut() % 4);
      steps.emplace_back(said.begin() + i, said.begin() + i + n);
      i += n;
    }
    return Play(steps, finish);
  });
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += pieces[random() % pieces.size()];
    finish = random() % 3 == 0 ? FinishReason::kLength : FinishReason::kStop;
    said = Ids(text + (finish == FinishReason::kStop ? "<|im_end|>" : "x"));
    Json body = {{"stop_sequences", {"STOP"}}, {"tools", WeatherTool()}};
    if (random() % 4 == 0) body["thinking"] = {{"type", "adaptive"}, {"display", "omitted"}};
    if (random() % 4 == 0) {
      body["tool_choice"] = {{"type", "auto"}, {"disable_parallel_tool_use", true}};
    }
    if (random() % 8 == 0) body["tool_choice"] = {{"type", "none"}};
    Json whole = Ask(body).json();
    body["stream"] = true;
    Json streamed = Gathered(Ask(body));
    whole.erase("id");
    streamed.erase("id");
    EXPECT_EQ(streamed, whole) << text;
  }
}

TEST_F(MessagesTest, TheConversationIsTheOneOfChat) {
  Start(Says("Hi"));
  const Json call = {{"type", "function"},
                     {"id", "toolu_1"},
                     {"function", {{"name", "weather"}, {"arguments", R"({"city":"Rome"})"}}}};
  const Json tools =
      Json::array({{{"type", "function"},
                    {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}});
  const Json chat = {{"tools", tools},
                     {"messages",
                      {{{"role", "system"}, {"content", "Be brief."}},
                       {{"role", "user"}, {"content", "Rome?"}},
                       {{"role", "assistant"},
                        {"content", "Look:"},
                        {"reasoning_content", "Hm."},
                        {"tool_calls", {call}}},
                       {{"role", "tool"}, {"tool_call_id", "toolu_1"}, {"content", "Error: off"}},
                       {{"role", "user"}, {"content", "Again?"}}}}};
  ASSERT_EQ(Chat(chat).status, 200);
  const std::vector<TokenId> expected = LastPrompt();
  const Json messages = {{"system", {{{"type", "text"}, {"text", "Be brief."}}}},
                         {"tools", WeatherTool()},
                         {"messages",
                          {{{"role", "user"}, {"content", "Rome?"}},
                           {{"role", "assistant"},
                            {"content",
                             {{{"type", "thinking"}, {"thinking", "Hm."}, {"signature", "s"}},
                              {{"type", "redacted_thinking"}, {"data", "d"}},
                              {{"type", "text"}, {"text", "Look:"}},
                              {{"type", "tool_use"},
                               {"id", "toolu_1"},
                               {"name", "weather"},
                               {"input", {{"city", "Rome"}}}}}}},
                           {{"role", "user"},
                            {"content",
                             {{{"type", "tool_result"},
                               {"tool_use_id", "toolu_1"},
                               {"is_error", true},
                               {"content", {{{"type", "text"}, {"text", "off"}}}}},
                              {{"type", "text"}, {"text", "Again?"}}}}}}}};
  const Answer answer = Ask(messages);
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(LastPrompt(), expected);
  const Answer count = Post("/v1/messages/count_tokens", messages);
  EXPECT_EQ(count.json(), (Json{{"input_tokens", expected.size()}}));
  EXPECT_EQ(engine_->submitted().size(), 2u) << "counting runs nothing";
}

TEST_F(MessagesTest, AnEarlierAnswerIsTakenBackAsItWasGiven) {
  Start([this](const Request&) {
    return PlayOneByOne(Ids(std::string("Hm.</think>") + kCall + "<|im_end|>"),
                        FinishReason::kStop);
  });
  Json body = {{"tools", WeatherTool()}, {"messages", {{{"role", "user"}, {"content", "Rome?"}}}}};
  const Json first = Ask(body).json();
  body["messages"].push_back({{"role", "assistant"}, {"content", first["content"]}});
  body["messages"].push_back({{"role", "user"},
                              {"content",
                               {{{"type", "tool_result"},
                                 {"tool_use_id", first["content"].back()["id"]},
                                 {"content", "sunny"}}}}});
  ASSERT_EQ(Ask(body).status, 200);
  const std::string prompt = tokenizer_->Decode(LastPrompt(), /*skip_special=*/false);
  EXPECT_THAT(prompt,
              HasSubstr("functions.weather:0<|tool_call_argument_begin|>{\"city\":\"Rome\"}"));
  EXPECT_THAT(prompt, HasSubstr("sunny"));
}

TEST_F(MessagesTest, ALastMessageOfTheAssistantIsContinued) {
  Start(Says("19."));
  const Answer answer = Ask({{"messages",
                              {{{"role", "user"}, {"content", "12 + 7?"}},
                               {{"role", "assistant"}, {"content", "It is"}}}}});
  EXPECT_EQ(answer.json()["content"][0]["text"], "19.");
  const std::string prompt = tokenizer_->Decode(LastPrompt(), /*skip_special=*/false);
  EXPECT_TRUE(prompt.ends_with("It is")) << prompt;
}

TEST_F(MessagesTest, TheWayItEndedIsTold) {
  FinishReason finish = FinishReason::kStop;
  Start([&](const Request&) {
    return PlayOneByOne(Ids("</think>One two STOP three<|im_end|>"), finish);
  });
  EXPECT_EQ(Ask().json()["stop_reason"], "end_turn");
  const Json stopped = Ask({{"stop_sequences", {"STOP"}}}).json();
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "STOP");
  finish = FinishReason::kLength;
  EXPECT_EQ(Ask().json()["stop_reason"], "max_tokens");
}

TEST_F(MessagesTest, TokensOutOfTheCacheAreCountedApart) {
  Start([this](const Request&) {
    std::vector<TokenEvent> events = PlayOneByOne(Ids("Hi<|im_end|>"), FinishReason::kStop);
    events[0].cached_tokens = 5;
    return events;
  });
  const Answer streamed = Ask({{"stream", true}});
  const auto prompt = static_cast<int64_t>(LastPrompt().size());
  const Json start = ParseJson(streamed.events.front()).value();
  EXPECT_EQ(start["message"]["usage"]["input_tokens"], prompt - 5);
  EXPECT_EQ(start["message"]["usage"]["cache_read_input_tokens"], 5);
  EXPECT_EQ(Gathered(streamed)["usage"]["output_tokens"], 2);
}

TEST_F(MessagesTest, ErrorsHaveAnthropicsForm) {
  Start(Says("Hi"));
  const auto check = [](const Answer& answer, int status, const std::string& type) {
    EXPECT_EQ(answer.status, status);
    const Json body = answer.json();
    EXPECT_EQ(body["type"], "error");
    EXPECT_EQ(body["error"]["type"], type) << answer.body;
    return body["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(check(Ask({{"temperature", -1}}), 400, "invalid_request_error"),
              HasSubstr("temperature"));
  EXPECT_THAT(check(Ask({{"stop_sequences", {""}}}), 400, "invalid_request_error"),
              HasSubstr("stop_sequences: "));
  check(Ask({{"model", "other"}}), 404, "not_found_error");
  check(Get("/v1/messages"), 405, "invalid_request_error");
  check(Post("/v1/messages/batches", Json::object()), 404, "not_found_error");
  check(Post("/v1/messages", {{"messages", Json::array()}}), 400, "invalid_request_error");
  const Answer thread = Ask({{"thread", {{"type", "create"}}}});
  check(thread, 400, "invalid_request_error");
  EXPECT_EQ(thread.error()["details"]["error_code"], "thread_unsupported_request");
  engine_->Refuse(Status(Code::kResourceExhausted, "full"));
  check(Ask(), 429, "rate_limit_error");
  engine_->set_healthy(false);
  check(Ask(), 503, "overloaded_error");
}

TEST_F(MessagesTest, AnErrorInsideAStreamIsItsLastEvent) {
  Start([this](const Request&) {
    std::vector<TokenEvent> events = PlayOneByOne(Ids("Hello"), FinishReason::kError);
    events.back().error = "broken";
    events.emplace(events.begin())->tokens = Ids("One");
    return events;
  });
  const Answer answer = Ask({{"stream", true}});
  ASSERT_FALSE(answer.events.empty());
  const Json last = ParseJson(answer.events.back()).value();
  EXPECT_EQ(last["type"], "error");
  EXPECT_EQ(last["error"]["type"], "api_error");
  EXPECT_EQ(last["error"]["message"], "broken");
}

TEST_F(MessagesTest, EitherHeaderCarriesTheKey) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"secret"};
  Start(Says("Hi"), config);
  const Json body = {{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  EXPECT_EQ(Post("/v1/messages", body, {{"x-api-key", "secret"}}).status, 200);
  EXPECT_EQ(Post("/v1/messages", body, {{"authorization", "Bearer secret"}}).status, 200);
  const Answer refused = Post("/v1/messages", body, {{"x-api-key", "wrong"}});
  EXPECT_EQ(refused.status, 401);
  EXPECT_EQ(refused.json()["error"]["type"], "authentication_error");
  EXPECT_EQ(Post("/v1/messages", body, {{"x-api-key", ""}}).status, 401);
}

TEST(ToolUseIdTest, HoldsOnlyWhatAnthropicsClientsAccept) {
  EXPECT_EQ(ToolUseId("functions.get-weather:12"), "functions_get-weather_12");
  EXPECT_EQ(ToolUseId("a b\xC3\xA9/c"), "a_b___c");
}

}  // namespace
}  // namespace baltoro
