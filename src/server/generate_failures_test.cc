// What the generating endpoints do when a request cannot be served, or not to its end.

#include <gmock/gmock.h>

#include <atomic>
#include <new>

#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Eventually;
using test::Play;
using ::testing::HasSubstr;

class GenerateFailuresTest : public test::ServerFixture {};

TEST_F(GenerateFailuresTest, PromptsThatCannotBeServedAreRefused) {
  Start(Says("x"));
  const std::vector<int> longest(4095, 300);
  const std::vector<int> too_long(4096, 300);

  EXPECT_EQ(Complete({{"prompt", longest}, {"max_tokens", 1}}).status, 200);
  const Answer answer = Complete({{"prompt", too_long}, {"max_tokens", 1}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error()["param"], "input_tokens");
  EXPECT_THAT(answer.body, HasSubstr("maximum context length is 4096 tokens"));
  for (const Json& prompt :
       {Json(""), Json::array(), Json::array({""}), Json::array({Json::array()}), Json(nullptr)}) {
    EXPECT_EQ(Complete({{"prompt", prompt}}).status, 400) << prompt.dump();
  }
  const std::string text(16 * 4096 + (1 << 20) + 1, 'a');
  EXPECT_THAT(Complete({{"prompt", text}}).body, HasSubstr("bytes are too long"));
  EXPECT_THAT(Chat({{"messages", {{{"role", "user"}, {"content", text}}}}}).body,
              HasSubstr("bytes are too long"));
  EXPECT_EQ(Complete({{"prompt", too_long}, {"truncate_prompt_tokens", 10}}).status, 200);
  EXPECT_EQ(engine_->submitted().back().prompt.size(), 10u);
}

TEST_F(GenerateFailuresTest, AClientThatHangsUpEndsTheEnginesWork) {
  Start([](const Request&) { return Play({{300}, {301}}, FinishReason::kNone); });

  for (const bool stream : {true, false}) {
    const size_t before = engine_->aborts();
    {
      HttpClient http = Client();
      const HttpClientRequest request = {
          .method = "POST",
          .target = "/v1/completions",
          .body = Json{{"prompt", "x"}, {"stream", stream}, {"n", 3}}.dump()};
      std::jthread closer;
      if (stream) {
        (void)http.Stream(request, [](const SseEvent&) { return false; });
      } else {
        HttpClient quick({.port = server_->port(), .idle_timeout = 0.2});
        EXPECT_FALSE(quick.Send(request).ok());
      }
    }
    EXPECT_TRUE(Eventually([&] { return engine_->aborts() == before + 3; })) << stream;
    EXPECT_TRUE(Eventually([&] { return engine_->running() == 0; }));
  }
  EXPECT_TRUE(Eventually([&] { return Get("/load").json()["server_load"] == 0; }));
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("vllm:request_success_total{engine=\"0\",finished_reason=\"abort\","
                        "model_name=\"pocket\"} 6\n"));
}

TEST_F(GenerateFailuresTest, AnErrorBeforeTheFirstByteIsAStatus) {
  const auto script = [](const Request& request) {
    std::vector<TokenEvent> events(1);
    const bool lost = request.stop.max_tokens == 7;
    events[0].finish = lost ? FinishReason::kLost : FinishReason::kError;
    events[0].error = "something went wrong";
    return events;
  };
  Start(script);

  const Answer whole = Complete();
  const Answer stream = Complete({{"stream", true}});
  // Whether it is already back when that is told does not matter.
  const Answer lost = Complete({{"stream", true}, {"max_tokens", 7}});

  for (const Answer* answer : {&whole, &stream}) {
    EXPECT_EQ(answer->status, 500);
    EXPECT_EQ(answer->error()["type"], "InternalServerError");
    EXPECT_EQ(answer->error()["message"], "something went wrong");
  }
  EXPECT_EQ(lost.status, 503) << "a lost engine is worth another try";
  EXPECT_EQ(lost.Header("retry-after"), "1");
}

struct Kind {
  Code code;
  int status;
  const char* type;
  const char* anthropic;
};

constexpr Kind kKinds[] = {
    {Code::kInvalidArgument, 400, "BadRequestError", "invalid_request_error"},
    {Code::kResourceExhausted, 429, "RateLimitError", "rate_limit_error"},
    {Code::kUnavailable, 503, "ServiceUnavailableError", "overloaded_error"},
    {Code::kInternal, 500, "InternalServerError", "api_error"},
};

// Whoever must act hears it, wherever the error was found.
TEST_F(GenerateFailuresTest, AnErrorOfTheEngineKeepsItsKind) {
  Kind kind{};
  bool begun = false;
  Start([&](const Request&) {
    std::vector<TokenEvent> events =
        begun ? Play({{300}, {301}, {}}, FinishReason::kError) : std::vector<TokenEvent>(1);
    events.back().Fail(Status(kind.code, "why"));
    return events;
  });
  const Json messages = {{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  for (const Kind& each : kKinds) {
    kind = each;
    begun = false;
    for (const bool stream : {false, true}) {
      const Answer answer = Complete({{"stream", stream}});
      EXPECT_EQ(answer.status, kind.status);
      EXPECT_EQ(answer.error()["type"], kind.type);
      EXPECT_EQ(answer.error()["message"], "why");
      const bool again = kind.status == 429 || kind.status == 503;
      EXPECT_EQ(answer.Header("retry-after"), again ? "1" : "") << kind.status;
    }
    EXPECT_EQ(Post("/v1/messages", messages).json()["error"]["type"], kind.anthropic);

    begun = true;
    const Json last = Complete({{"stream", true}}).chunks().back();
    EXPECT_EQ(last["error"]["code"], kind.status);
    EXPECT_EQ(last["error"]["type"], kind.type);
    Json streamed = messages;
    streamed["stream"] = true;
    const Answer events = Post("/v1/messages", streamed);
    EXPECT_EQ(ParseJson(events.events.back()).value()["error"]["type"], kind.anthropic);
  }
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("baltoro:requests_rejected_total{reason=\"queue_full\"} 3\n"));
}

TEST_F(GenerateFailuresTest, AnErrorInAStreamIsItsLastEvent) {
  Start([](const Request&) {
    std::vector<TokenEvent> events = Play({{300}, {301}, {}}, FinishReason::kError);
    events.back().error = "the engine was lost";
    return events;
  });

  const Answer answer = Complete({{"stream", true}, {"n", 2}});

  EXPECT_EQ(answer.status, 200);
  const std::vector<Json> chunks = answer.chunks();
  EXPECT_EQ(chunks.back()["error"]["message"], "the engine was lost");
  EXPECT_EQ(chunks.back()["error"]["code"], 500);
  EXPECT_GE(chunks.size(), 3u);
}

TEST_F(GenerateFailuresTest, ALostEngineIsTheLastEventOfAStreamThatHasBegun) {
  Start([](const Request&) {
    std::vector<TokenEvent> events = Play({{300}, {301}, {}}, FinishReason::kLost);
    events.back().error = "the engine stopped";
    return events;
  });

  const Answer answer = Complete({{"stream", true}});

  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.Header("retry-after"), "") << "it can no longer be said";
  const std::vector<Json> chunks = answer.chunks();
  ASSERT_GE(chunks.size(), 2u);
  EXPECT_EQ(chunks.back()["error"]["code"], 503);
  EXPECT_EQ(chunks.back()["error"]["type"], "ServiceUnavailableError");
}

TEST_F(GenerateFailuresTest, ALostEngineIsAnOverloadedOneInAnthropicsForm) {
  Start([](const Request&) {
    std::vector<TokenEvent> events(1);
    events[0].finish = FinishReason::kLost;
    events[0].error = "the engine stopped";
    return events;
  });

  const Answer answer = Post(
      "/v1/messages", {{"max_tokens", 5}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}});

  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.Header("retry-after"), "1");
  EXPECT_EQ(answer.json()["error"]["type"], "overloaded_error");
  EXPECT_EQ(answer.json()["error"]["message"], "the engine stopped");
}

TEST_F(GenerateFailuresTest, AFullQueueIs429AndLeavesNothingRunning) {
  Start([](const Request&) { return std::vector<TokenEvent>(); });
  engine_->Refuse(Status(Code::kResourceExhausted, "the queue is full"), /*after=*/2);

  const Answer answer = Complete({{"n", 4}, {"stream", true}});

  EXPECT_EQ(answer.status, 429);
  EXPECT_EQ(answer.Header("retry-after"), "1");
  EXPECT_EQ(answer.Header("connection"), "");
  EXPECT_EQ(answer.error()["type"], "RateLimitError");
  EXPECT_EQ(engine_->submitted().size(), 2u);
  EXPECT_TRUE(Eventually([&] { return engine_->running() == 0; }));
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("baltoro:requests_rejected_total{reason=\"queue_full\"} 1\n"));
  EXPECT_EQ(Get("/load").json()["server_load"], 0);
}

// Without an answer the client would wait for ever.
TEST_F(GenerateFailuresTest, WantOfMemoryAtTheSecondChoiceIs500AndLeavesNothingRunning) {
  std::atomic<int> asked = 0;
  Start([&](const Request&) {
    if (asked++ == 1) throw std::bad_alloc();
    return std::vector<TokenEvent>();
  });

  EXPECT_EQ(Complete({{"n", 3}}).status, 500);

  EXPECT_EQ(asked, 2);
  EXPECT_TRUE(Eventually([&] { return engine_->running() == 0; }));
  EXPECT_EQ(Get("/load").json()["server_load"], 0);
}

TEST_F(GenerateFailuresTest, WhatTheEngineRefusesForGoodIs400) {
  Start(Says("x"));
  engine_->Refuse(InvalidArgument("longer than the whole cache"));

  const Answer answer = Complete();

  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error()["message"], "longer than the whole cache");
}

}  // namespace
}  // namespace baltoro
