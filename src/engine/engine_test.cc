// The engine around the model: queue, loop, aborts, limits. With the stand-in, so that the tokens
// are known.

#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <thread>

#include "engine/local_engine.h"
#include "engine/local_executor.h"
#include "engine/request_check.h"
#include "engine/stand_in.h"
#include "engine/testing/event_log.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::Told;
using ::testing::HasSubstr;

EngineConfig StandIn(double step_ms = 0) {
  EngineConfig config;
  config.load_format = "stand-in";
  config.stand_in_step_ms = step_ms;
  return config;
}

Request MakeRequest(uint64_t id, int max_tokens = 10, int prompt = 20) {
  Request request;
  request.id = RequestId{id};
  for (int i = 0; i < prompt; ++i)
    request.prompt.push_back(static_cast<TokenId>((id * 7 + i) % 2000));
  request.stop.max_tokens = max_tokens;
  return request;
}

std::vector<TokenId> Expected(const Request& request) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < request.stop.max_tokens; ++i) {
    tokens.push_back(StandInToken(request.prompt, tokens));
  }
  return tokens;
}

EngineInfo SmallEngine() {
  EngineInfo info;
  info.max_model_len = info.vocab_size = info.kv_cache_tokens = 4096;
  info.num_blocks = 64;
  return info;
}

std::unique_ptr<Engine> Start(const EngineConfig& config, EventLog& log) {
  auto engine = StartEngine(config, log.sink(), nullptr);
  EXPECT_TRUE(engine.ok()) << engine.status().message();
  return std::move(engine).value();
}

// One step once all requests are there, and then nothing can be computed any more.
class OneStep final : public PlanRunner {
 public:
  explicit OneStep(std::latch* submitted) : submitted_(submitted) {}
  Result<StepResult> Run(const StepPlan& plan) override {
    if (ran_) return Status(Code::kInternal, "rank 1 is gone");
    ran_ = true;
    submitted_->wait();
    return stand_in_.Run(plan);
  }

 private:
  std::latch* const submitted_;
  StandInRunner stand_in_{4, /*step_ms=*/0};
  bool ran_ = false;
};

class EngineTest : public ::testing::TestWithParam<bool> {};

TEST_P(EngineTest, ManyRequestsFromManyThreadsGetTheirOwnTokens) {
  EngineConfig config = StandIn();
  config.async_scheduling = GetParam();
  config.max_num_seqs = 16;
  config.max_queued_requests = 10000;
  EventLog log;
  const auto engine = Start(config, log);
  constexpr int kThreads = 4, kEach = 100;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kEach; ++i) {
          const uint64_t id = static_cast<uint64_t>(t) * kEach + i;
          EXPECT_TRUE(engine->Submit(MakeRequest(id, 1 + static_cast<int>(id % 30))).ok());
        }
      });
    }
  }
  for (uint64_t id = 0; id < kThreads * kEach; ++id) {
    const Told told = log.WaitForEnd(id);
    EXPECT_EQ(told.finish, FinishReason::kLength);
    EXPECT_EQ(told.finals, 1);
    EXPECT_EQ(told.tokens, Expected(MakeRequest(id, 1 + static_cast<int>(id % 30))));
  }
}

TEST_P(EngineTest, AnAbortEndsTheRequestWithinTwoSteps) {
  EngineConfig config = StandIn(/*step_ms=*/20);
  config.async_scheduling = GetParam();
  EventLog log;
  const auto engine = Start(config, log);
  ASSERT_TRUE(engine->Submit(MakeRequest(1, 10000)).ok());
  const size_t before = log.WaitForTokens(1, 3).tokens.size();

  engine->Abort(RequestId{1});
  const Told told = log.WaitForEnd(1);

  EXPECT_EQ(told.finish, FinishReason::kAbort);
  EXPECT_LE(told.tokens.size(), before + 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(log.Get(1).events, told.events);  // nothing after the final event
  EXPECT_EQ(engine->stats().running, 0);
  EXPECT_EQ(engine->stats().kv_usage, 0);
}

TEST_P(EngineTest, EndingTheEngineEndsItsRequests) {
  EngineConfig config = StandIn(/*step_ms=*/5);
  config.async_scheduling = GetParam();
  config.max_num_seqs = 2;
  EventLog log;
  auto engine = Start(config, log);
  for (uint64_t id = 0; id < 6; ++id) ASSERT_TRUE(engine->Submit(MakeRequest(id, 10000)).ok());
  (void)log.WaitForTokens(0, 1);

  engine.reset();

  for (uint64_t id = 0; id < 6; ++id) EXPECT_EQ(log.Get(id).finals, 1) << id;
}

TEST(EngineFaultTest, AnEngineWithoutRanksLosesItsRequestsRatherThanFailThem) {
  EventLog log;
  std::latch submitted(1);
  LocalEngine engine(StandIn(), SmallEngine(),
                     std::make_unique<LocalExecutor>(std::make_unique<OneStep>(&submitted), 1),
                     log.sink());
  for (uint64_t id = 0; id < 3; ++id) EXPECT_TRUE(engine.Submit(MakeRequest(id)).ok());
  submitted.count_down();

  for (uint64_t id = 0; id < 3; ++id) {
    const Told told = log.WaitForEnd(id);
    EXPECT_EQ(told.finish, FinishReason::kLost);
    EXPECT_EQ(told.error, kEngineLost);
    EXPECT_EQ(told.finals, 1);
  }
  // The loop is seen to end behind its last events: a moment after they are told.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (engine.end().ok() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_FALSE(engine.end().ok()) << "it will not come back by itself";
  EXPECT_FALSE(engine.healthy());
  EXPECT_EQ(engine.Submit(MakeRequest(3)).code(), Code::kUnavailable);
}

INSTANTIATE_TEST_SUITE_P(Scheduling, EngineTest, ::testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "Asynchronous" : "Synchronous");
});

TEST(EngineQueueTest, AFullQueueRefusesAndAcceptsAgain) {
  EngineConfig config = StandIn(/*step_ms=*/10);
  config.max_num_seqs = 1;
  config.max_queued_requests = 3;
  EventLog log;
  const auto engine = Start(config, log);
  ASSERT_TRUE(engine->Submit(MakeRequest(0, 10000)).ok());
  (void)log.WaitForTokens(0, 1);

  for (uint64_t id = 1; id <= 3; ++id) EXPECT_TRUE(engine->Submit(MakeRequest(id, 2)).ok());
  EXPECT_EQ(engine->Submit(MakeRequest(4, 2)).code(), Code::kResourceExhausted);

  engine->Abort(RequestId{0});
  (void)log.WaitForEnd(1);
  EXPECT_TRUE(engine->Submit(MakeRequest(5, 2)).ok());
  EXPECT_EQ(log.WaitForEnd(5).finish, FinishReason::kLength);
}

// However long there is nothing to do: each turn of an idle loop is short.
TEST(EngineHealthTest, AnIdleEngineIsHealthy) {
  EventLog log;
  const auto engine = Start(StandIn(), log);
  double shortest = 1e9;
  for (int i = 0; i < 50; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    shortest = std::min(shortest, engine->stats().turn_seconds);
  }
  EXPECT_LT(shortest, 0.5);
  EXPECT_TRUE(engine->healthy());
}

// A step that takes as long as it pleases the test.
class GatedStep final : public PlanRunner {
 public:
  explicit GatedStep(std::latch& gate) : gate_(gate) {}
  Result<StepResult> Run(const StepPlan& plan) override {
    gate_.wait();
    return inner_.Run(plan);
  }

 private:
  std::latch& gate_;
  StandInRunner inner_{8, 0};
};

TEST(EngineHealthTest, AStepThatLastsIsSeenWhileItLasts) {
  EventLog log;
  std::latch gate(1);
  EngineConfig config = StandIn();
  config.max_num_seqs = 8;
  LocalEngine engine(config, SmallEngine(),
                     std::make_unique<LocalExecutor>(std::make_unique<GatedStep>(gate), 1),
                     log.sink());
  ASSERT_TRUE(engine.Submit(MakeRequest(1, 5)).ok());

  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (engine.healthy() && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(engine.health().trouble, EngineTrouble::kStalled);
  gate.count_down();

  EXPECT_EQ(log.WaitForEnd(1).finish, FinishReason::kLength);
  EXPECT_TRUE(engine.healthy());
  EXPECT_LT(engine.stats().long_turn_seconds, 2) << "one stall teaches nothing";
}

TEST(RequestCheckTest, SomethingMayComeBeforeMinTokensAreWritten) {
  const EngineInfo info = SmallEngine();
  Request request = MakeRequest(1, 10);
  request.sampling.allowed_token_ids = {7, 5};
  request.stop.eos_ids = {9, 7};
  request.stop.stop_ids = {5};
  EXPECT_TRUE(CheckRequest(request, info).ok());
  request.stop.min_tokens = 3;
  const Status status = CheckRequest(request, info);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("allowed_token_ids and min_tokens"));
  request.stop.ignore_eos = true;  // then 7 is like any other
  EXPECT_TRUE(CheckRequest(request, info).ok());
  request.stop.ignore_eos = false;
  request.sampling.allowed_token_ids.push_back(6);
  EXPECT_TRUE(CheckRequest(request, info).ok());
}

TEST(RequestCheckTest, EveryFieldIsHeldToItsRange) {
  EngineInfo info;
  info.max_model_len = 100;
  info.vocab_size = 2000;
  info.num_blocks = 4;
  info.kv_cache_tokens = 80;
  const auto refused = [&](const auto& change) {
    Request request = MakeRequest(1);
    change(request);
    const Status status = CheckRequest(request, info);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    return status.message();
  };
  EXPECT_TRUE(CheckRequest(MakeRequest(1), info).ok());
  EXPECT_THAT(refused([](Request& r) { r.prompt.clear(); }), HasSubstr("prompt"));
  EXPECT_THAT(refused([](Request& r) { r.prompt[0] = 2000; }), HasSubstr("prompt"));
  EXPECT_THAT(refused([](Request& r) { r.prompt[0] = -1; }), HasSubstr("prompt"));
  EXPECT_THAT(refused([](Request& r) { r.prompt.resize(100); }), HasSubstr("100"));
  EXPECT_THAT(refused([](Request& r) { r.stop.max_tokens = 70; }), HasSubstr("80"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.temperature = std::nanf(""); }),
              HasSubstr("temperature"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.top_p = 0; }), HasSubstr("top_p"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.top_k = -1; }), HasSubstr("top_k"));
  EXPECT_THAT(refused([](Request& r) {
                r.sampling.logit_bias = {{2000, 1.0f}};
              }),
              HasSubstr("logit_bias"));
  EXPECT_THAT(refused([](Request& r) {
                r.sampling.allowed_token_ids = {5, -3};
              }),
              HasSubstr("allowed_token_ids"));
  EXPECT_THAT(refused([](Request& r) { r.stop.stop_ids = {1 << 30}; }), HasSubstr("stop_token"));
  EXPECT_THAT(refused([](Request& r) { r.stop.min_tokens = 11; }), HasSubstr("min_tokens"));
  EXPECT_THAT(refused([](Request& r) { r.sampling.logprobs = 3000; }), HasSubstr("logprobs"));
}

}  // namespace
}  // namespace baltoro
