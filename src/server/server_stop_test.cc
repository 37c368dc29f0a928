// What those hear who still wait for an answer when the server stops.

#include <gmock/gmock.h>

#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Eventually;
using test::Play;
using ::testing::HasSubstr;

const Json kMessages = {{{"role", "user"}, {"content", "Hello!"}}};

class ServerStopTest : public test::ServerFixture {
 protected:
  // An engine that begins every answer and ends none.
  void StartEndless(ServerConfig config = DefaultConfig()) {
    Start(
        [](const Request&) {
          return Play({{300}, {301}}, FinishReason::kNone);
        },
        std::move(config));
  }

  // The whole text of a streamed answer, cut short by a stop as soon as it has begun.
  std::vector<SseEvent> StopInside(const std::string& target, Json body) {
    body["stream"] = true;
    std::atomic<bool> begun = false;
    std::vector<SseEvent> events;
    std::jthread client([&] {
      HttpClient http = Client();
      const auto response = http.Stream({.method = "POST", .target = target, .body = body.dump()},
                                        [&](const SseEvent& event) {
                                          events.push_back(event);
                                          begun = true;
                                          return true;
                                        });
      EXPECT_TRUE(response.ok()) << "a bare end: " << response.status().message();
    });
    EXPECT_TRUE(Eventually([&] { return begun.load(); }));
    server_->Drain(0);
    client.join();
    return events;
  }
  Answer StopBefore(const std::string& target, const Json& body) {
    Answer answer;
    std::jthread client([&] { answer = Post(target, body); });
    EXPECT_TRUE(Eventually([&] { return engine_->submitted().size() == 1; }));
    server_->Drain(0);
    client.join();
    return answer;
  }
};

TEST_F(ServerStopTest, AStreamOfOpenAiGetsAnErrorAndDone) {
  StartEndless();

  const auto events = StopInside("/v1/chat/completions", {{"messages", kMessages}});

  ASSERT_GE(events.size(), 2u);
  EXPECT_EQ(events.back().data, "[DONE]");
  const Json error = ParseJson(events[events.size() - 2].data).value();
  EXPECT_EQ(error["error"]["code"], 503);
  EXPECT_EQ(error["error"]["message"], "The server is shutting down.");
  EXPECT_TRUE(Eventually([&] { return engine_->running() == 0; }));
}

TEST_F(ServerStopTest, AStreamOfAnthropicGetsAnErrorEvent) {
  StartEndless();

  const auto events = StopInside("/v1/messages", {{"max_tokens", 50}, {"messages", kMessages}});

  EXPECT_EQ(events.back().event, "error");
  EXPECT_EQ(ParseJson(events.back().data).value()["error"]["type"], "overloaded_error");
}

TEST_F(ServerStopTest, AStreamOfResponsesGetsAFailedResponse) {
  StartEndless();

  const auto events = StopInside("/v1/responses", {{"input", "Hello!"}});

  EXPECT_EQ(events.back().event, "response.failed");
  EXPECT_EQ(ParseJson(events.back().data).value()["response"]["status"], "failed");
}

TEST_F(ServerStopTest, AWholeAnswerBecomesA503InTheFormOfItsApi) {
  for (const char* target : {"/v1/completions", "/v1/chat/completions"}) {
    StartEndless();
    const Answer answer = StopBefore(target, {{"prompt", "x"}, {"messages", kMessages}});
    EXPECT_EQ(answer.status, 503) << target;
    EXPECT_EQ(answer.Header("retry-after"), "1");
    EXPECT_EQ(answer.error()["type"], "ServiceUnavailableError");
    server_->SetEngine(nullptr);
    engine_.reset();
  }
}

TEST_F(ServerStopTest, AWholeAnswerOfAnthropicBecomesAnOverloadedError) {
  StartEndless();

  const Answer answer = StopBefore("/v1/messages", {{"max_tokens", 50}, {"messages", kMessages}});

  EXPECT_EQ(answer.status, 503);
  EXPECT_EQ(answer.error()["type"], "overloaded_error");
}

TEST_F(ServerStopTest, WhatIsBeingPreparedOrWaitsForThatIsAnswered) {
  ServerConfig config = DefaultConfig();
  config.preparing.threads = 1;
  StartEndless(std::move(config));
  const std::string prompt(4 << 20, 'a');
  std::vector<Answer> answers(6);
  std::vector<std::jthread> clients;
  for (size_t i = 0; i < answers.size(); ++i) {
    clients.emplace_back([&, i] { answers[i] = Post("/tokenize", {{"prompt", prompt}}); });
  }
  // The first has been served, so that another is under way and the others wait.
  ASSERT_TRUE(Eventually(
      [&] {
        return std::any_of(answers.begin(), answers.end(),
                           [](const Answer& answer) { return answer.status != 0; });
      },
      60));

  server_->Drain(0);
  clients.clear();

  size_t refused = 0;
  for (const Answer& answer : answers) {
    EXPECT_TRUE(answer.status == 200 || answer.status == 503) << answer.status;
    refused += answer.status == 503;
    if (answer.status == 503) {
      EXPECT_THAT(answer.body, HasSubstr("shutting down"));
    }
  }
  EXPECT_GE(refused, 1u);
}

}  // namespace
}  // namespace baltoro
