#include "bench/serve/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/json.h"
#include "net/raw_client.h"

namespace baltoro {
namespace {

// A server whose answers take `chunks` times `pause`; it counts, and keeps what it was sent.
class Steady {
 public:
  Steady(int chunks, std::chrono::milliseconds pause) : chunks_(chunks), pause_(pause) {
    server_ = test::StartServer({}, [this](HttpRequest request, Responder responder) {
      const std::lock_guard lock(mutex_);
      requests_.push_back(std::move(request));
      most_ = std::max(most_, ++now_);
      threads_.emplace_back([this, kept = std::make_shared<Responder>(std::move(responder))] {
        kept->StartStream(200);
        for (int i = 0; i < chunks_; ++i) {
          std::this_thread::sleep_for(pause_);
          kept->Write("data: {\"choices\":[{\"text\":\"w\"}]}\n\n");
        }
        --now_;
        kept->Write("data: {\"choices\":[],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":" +
                    std::to_string(chunks_) + "}}\n\ndata: [DONE]\n\n");
        kept->End();
      });
    });
  }
  ~Steady() {
    threads_.clear();
    server_ = nullptr;
  }
  int port() const { return server_->port(); }
  int most() const { return most_; }
  std::vector<HttpRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }

 private:
  int chunks_;
  std::chrono::milliseconds pause_;
  std::mutex mutex_;
  std::vector<HttpRequest> requests_;
  std::atomic<int> now_ = 0;
  int most_ = 0;
  std::unique_ptr<HttpServer> server_;
  std::vector<std::jthread> threads_;
};

BenchServeCommand To(int port) {
  BenchServeCommand command;
  command.host = "127.0.0.1";
  command.port = port;
  command.endpoint = "/v1/completions";
  command.model = "m";
  command.body = {{"temperature", 0.5}};
  command.data.id_prefix = "t-";
  return command;
}

Dataset Sessions(size_t sessions, size_t turns) {
  Dataset out;
  for (size_t i = 0; i < sessions; ++i) {
    BenchSession session{.text = "\"p" + std::to_string(i) + "\"", .turns = {}};
    session.turns.assign(
        turns,
        {.text_bytes = session.text.size(), .prompt_tokens = 4, .output_tokens = 3, .think = 0.02});
    out.sessions.push_back(std::move(session));
  }
  return out;
}

// Only lower bounds are held: what a busy machine adds has none above.
TEST(LoadTest, TimesAreAtLeastWhatTheServerTakes) {
  Steady server(3, std::chrono::milliseconds(10));
  const auto out = RunLoad(To(server.port()), Sessions(8, 1), std::vector<double>(8), false);
  ASSERT_TRUE(out.ok()) << out.status().message();
  for (const Answer& answer : out.value().answers) {
    ASSERT_TRUE(answer.success) << answer.error;
    EXPECT_EQ(answer.text, "www");
    EXPECT_EQ(answer.output_tokens, 3);
    EXPECT_EQ(answer.prompt_tokens, 5);  // the server's count
    EXPECT_GE(answer.ttft, 0.01);
    EXPECT_GE(answer.latency, 0.03);
    EXPECT_EQ(answer.itls.size(), 2U);
    EXPECT_GE(out.value().seconds, answer.latency);
  }
  const Json body = ParseJson(server.requests()[0].body).value();
  EXPECT_EQ(body, (Json{{"prompt", body["prompt"]},
                        {"model", "m"},
                        {"max_tokens", 3},
                        {"stream", true},
                        {"stream_options", {{"include_usage", true}}},
                        {"temperature", 0.5}}));
  EXPECT_TRUE(server.requests()[0].Header("x-request-id").starts_with("t-"));
}

TEST(LoadTest, ConcurrencyAndArrivalsAreKept) {
  Steady server(2, std::chrono::milliseconds(5));
  BenchServeCommand command = To(server.port());
  command.load.max_concurrency = 3;
  const auto limited = RunLoad(command, Sessions(12, 1), std::vector<double>(12), false);
  ASSERT_TRUE(limited.ok());
  EXPECT_EQ(server.most(), 3);
  const std::vector<double> arrivals = {0, 0.05, 0.1};
  command.load.max_concurrency = 0;
  const auto timed = RunLoad(command, Sessions(3, 1), arrivals, false);
  ASSERT_TRUE(timed.ok());
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_GE(timed.value().answers[i].start, timed.value().begun + arrivals[i] - 1e-6);
  }
  EXPECT_GE(timed.value().seconds, 0.11);
}

TEST(LoadTest, TurnsOfASessionComeOneAfterAnother) {
  Steady server(1, std::chrono::milliseconds(5));
  const auto out = RunLoad(To(server.port()), Sessions(2, 3), {0, 0}, false);
  ASSERT_TRUE(out.ok());
  const std::vector<Answer>& answers = out.value().answers;
  ASSERT_EQ(answers.size(), 6U);
  for (const size_t i : {1, 2, 4, 5}) {
    ASSERT_TRUE(answers[i].success) << answers[i].error;
    EXPECT_GE(answers[i].start, answers[i - 1].start + answers[i - 1].latency + 0.02);
  }
}

TEST(LoadTest, RefusalsAndModelsAreToldPerRequest) {
  std::atomic<int> count = 0;
  std::vector<std::string> models;
  const auto server = test::StartServer({}, [&](HttpRequest request, Responder responder) {
    models.push_back(ParseJson(request.body).value()["model"]);
    if (++count > 1)
      return responder.Send({.status = 429, .body = R"({"error":{"message":"full"}})"});
    responder.StartStream(200);
    responder.Write("data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":\"stop\"}]}\n\n");
    responder.End();
  });
  BenchServeCommand command = To(server->port());
  command.load.max_concurrency = 1;
  command.loras = {"a", "b"};
  command.loras_in_turn = true;
  const auto out = RunLoad(command, Sessions(1, 4), {0}, false);
  ASSERT_TRUE(out.ok());
  EXPECT_TRUE(out.value().answers[0].success);
  EXPECT_EQ(out.value().answers[1].error, "429: full");
  EXPECT_EQ(out.value().answers[3].error, "not sent: the request before it in its session failed");
  EXPECT_EQ(models, (std::vector<std::string>{"a", "b"}));
}

}  // namespace
}  // namespace baltoro
