// Requests with constraints around the real step loop, with the stand-in: preparation, limits,
// aborts, and what one bad constraint does to others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "engine/engine.h"
#include "engine/testing/event_log.h"
#include "engine/testing/scripted_constraint.h"

namespace baltoro {
namespace {

using std::chrono::steady_clock;
using test::EventLog;
using test::ScriptedFactory;
using test::Told;
using Tokens = std::vector<TokenId>;

Request MakeRequest(uint64_t id, const std::string& script, int max_tokens = 20) {
  Request request;
  request.id = RequestId{id};
  request.prompt = {static_cast<TokenId>(id % 2000), 2, 3};
  request.stop.max_tokens = max_tokens;
  request.constraint = script;
  return request;
}

class ConstraintTest : public ::testing::TestWithParam<bool> {
 protected:
  void Start(double step_ms = 0, int64_t queue = 1024, int32_t max_num_seqs = 16) {
    EngineConfig config;
    config.load_format = "stand-in";
    config.stand_in_step_ms = step_ms;
    config.async_scheduling = GetParam();
    config.max_queued_requests = queue;
    config.max_num_seqs = max_num_seqs;
    auto engine = StartEngine(config, log_.sink(), nullptr, test::Hand(factory_));
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    engine_ = std::move(engine).value();
  }
  void TearDown() override { factory_->Release(); }
  Told Ask(const Request& request) {
    const Status status = engine_->Submit(request);
    EXPECT_TRUE(status.ok()) << status.message();
    return log_.WaitForEnd(static_cast<uint64_t>(request.id));
  }

  EventLog log_;
  std::shared_ptr<ScriptedFactory> factory_ = std::make_shared<ScriptedFactory>();
  std::unique_ptr<Engine> engine_;
};

TEST_P(ConstraintTest, TheScriptComesAndItsEndIsAStop) {
  Start();
  const Told told = Ask(MakeRequest(1, "1999 7 2303 0"));
  EXPECT_EQ(told.tokens, (Tokens{1999, 7, 2303, 0}));
  EXPECT_EQ(told.finish, FinishReason::kStop);
  EXPECT_EQ(told.finals, 1);
  EXPECT_EQ(told.starts, 1);
  EXPECT_FALSE(told.token_before_start);
}

TEST_P(ConstraintTest, TheLengthLimitStillHolds) {
  Start();
  const Told told = Ask(MakeRequest(1, "loop 5 6", 5));
  EXPECT_EQ(told.tokens, (Tokens{5, 6, 5, 6, 5}));
  EXPECT_EQ(told.finish, FinishReason::kLength);
}

TEST_P(ConstraintTest, NothingAllowedFromTheStartIsAnEmptyAnswer) {
  Start();
  const Told told = Ask(MakeRequest(1, "slow=0"));
  EXPECT_EQ(told.tokens, Tokens{});
  EXPECT_EQ(told.finish, FinishReason::kStop);
}

TEST_P(ConstraintTest, AnEndTokenThatMinTokensForbidsEndsTheRequestIfNothingElseMayCome) {
  Start();
  Request request = MakeRequest(1, "8 9,4 4 5 5 5");
  request.stop.min_tokens = 6;
  request.stop.eos_ids = {4};
  Told told = Ask(request);
  EXPECT_EQ(told.tokens, (Tokens{8, 9, 4}));  // 9: where something else may come, 4 waits
  EXPECT_EQ(told.finish, FinishReason::kStop);

  request.id = RequestId{2};
  request.stop.eos_ids = {};
  request.stop.stop_ids = {4};
  told = Ask(request);
  EXPECT_EQ(told.tokens, (Tokens{8, 9, 4}));
  EXPECT_EQ(told.finish, FinishReason::kStop);
}

TEST_P(ConstraintTest, AllowedIdsAndTheConstraintHoldBoth) {
  Start();
  Request request = MakeRequest(1, "loop 1,2,3 2,3,4", 40);
  request.sampling.allowed_token_ids = {2, 4, 50};
  const Told told = Ask(request);
  ASSERT_EQ(told.tokens.size(), 40u);
  for (size_t i = 0; i < 40; ++i) {
    EXPECT_TRUE(told.tokens[i] == 2 || (i % 2 == 1 && told.tokens[i] == 4)) << i;
  }

  request.id = RequestId{2};
  request.sampling.allowed_token_ids = {4};
  const Told nothing = Ask(request);
  EXPECT_EQ(nothing.tokens, Tokens{});
  EXPECT_EQ(nothing.finish, FinishReason::kStop);
}

TEST_P(ConstraintTest, ABadConstraintEndsItsOwnRequestAlone) {
  Start();
  struct Bad {
    std::string script, error;
    Code code;
  };
  const std::vector<Bad> bad = {
      {"make-error 5", "the script makes no sense", Code::kInvalidArgument},
      {"make-throw 5", "out of memory", Code::kResourceExhausted},
      {"fill-throw=2 loop 5", "out of memory", Code::kResourceExhausted},
      {"fill-error=2 loop 5", "too many ways", Code::kInvalidArgument},
      {"accept-throw=2 loop 5", "out of memory", Code::kResourceExhausted},
      {"accept-false=2 loop 5", "does not allow", Code::kInternal},
  };
  uint64_t id = 1;
  for (size_t i = 0; i < bad.size(); ++i) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(id++, bad[i].script)).ok());
    ASSERT_TRUE(engine_->Submit(MakeRequest(id++, "loop 5 6", 10)).ok());
  }
  for (size_t i = 0; i < bad.size(); ++i) {
    const Told told = log_.WaitForEnd(1 + 2 * i);
    EXPECT_EQ(told.finish, FinishReason::kError) << bad[i].script;
    EXPECT_THAT(told.error, ::testing::HasSubstr(bad[i].error));
    EXPECT_EQ(told.error_code, bad[i].code) << bad[i].script;
    EXPECT_EQ(told.finals, 1);
    const Told other = log_.WaitForEnd(2 + 2 * i);
    EXPECT_EQ(other.finish, FinishReason::kLength);
    EXPECT_EQ(other.tokens.size(), 10u);
  }
  EXPECT_TRUE(engine_->healthy());
}

TEST_P(ConstraintTest, NobodyWaitsForTheConstraintOfAnother) {
  Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, "make-hold 5 6")).ok());
  EXPECT_EQ(Ask(MakeRequest(2, "")).finish, FinishReason::kLength);
  EXPECT_EQ(log_.Get(1).events, 0);
  factory_->Release();
  EXPECT_EQ(log_.WaitForEnd(1).tokens, (Tokens{5, 6}));
}

TEST_P(ConstraintTest, PreparingCountsAsWaiting) {
  Start(/*step_ms=*/0, /*queue=*/2);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, "make-hold 5")).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, "make-hold 5")).ok());
  EXPECT_EQ(engine_->stats().waiting, 2);
  EXPECT_EQ(engine_->Submit(MakeRequest(3, "5")).code(), Code::kResourceExhausted);
  EXPECT_EQ(engine_->Submit(MakeRequest(4, "")).code(), Code::kResourceExhausted);
  factory_->Release();
  (void)log_.WaitForEnd(2);
  EXPECT_EQ(Ask(MakeRequest(5, "5")).tokens, Tokens{5});
}

TEST_P(ConstraintTest, LargeConstraintsThatWaitAreBounded) {
  Start();
  const std::string large = "make-hold 5" + std::string(size_t{100} << 20, ' ');
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, large)).ok());
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, large)).ok());
  const Status status = engine_->Submit(MakeRequest(3, large));
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("200 MiB"));
  factory_->Release();
  EXPECT_EQ(log_.WaitForEnd(2).tokens, Tokens{5});
  EXPECT_EQ(Ask(MakeRequest(4, large)).tokens, Tokens{5});
}

TEST_P(ConstraintTest, AConstraintThatManyShareCountsOnce) {
  Start();
  Request request = MakeRequest(1, "make-hold 5" + std::string(size_t{20} << 20, ' '));
  for (uint64_t id = 1; id <= 20; ++id) {
    request.id = RequestId{id};
    ASSERT_TRUE(engine_->Submit(request).ok()) << id;
  }
  factory_->Release();
  EXPECT_EQ(log_.WaitForEnd(20).tokens, Tokens{5});
}

TEST_P(ConstraintTest, AbortsReachARequestInEveryState) {
  Start(/*step_ms=*/2);
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, "make-hold loop 5")).ok());  // being made
  ASSERT_TRUE(engine_->Submit(MakeRequest(2, "loop 5")).ok());            // behind it
  engine_->Abort(RequestId{2});
  engine_->Abort(RequestId{1});
  for (const uint64_t id : {1, 2}) {
    const Told told = log_.WaitForEnd(id);
    EXPECT_EQ(told.finish, FinishReason::kAbort);
    EXPECT_EQ(told.starts, 0);
  }
  factory_->Release();
  ASSERT_TRUE(engine_->Submit(MakeRequest(3, "slow=5 loop 5", 10000)).ok());
  (void)log_.WaitForTokens(3, 3);
  engine_->Abort(RequestId{3});
  EXPECT_EQ(log_.WaitForEnd(3).finish, FinishReason::kAbort);
  EXPECT_EQ(Ask(MakeRequest(4, "7 8")).tokens, (Tokens{7, 8}));
  for (const uint64_t id : {1, 2, 3}) EXPECT_EQ(log_.Get(id).finals, 1);
  EXPECT_EQ(engine_->stats().waiting, 0);
  EXPECT_LE(factory_->calls().made, 3);  // the second was aborted before its turn
}

TEST_P(ConstraintTest, ConstraintsGoWithTheirRequests) {
  Start();
  for (uint64_t id = 1; id <= 40; ++id) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(id, "loop 5 6 7", 5)).ok());
  }
  for (uint64_t id = 1; id <= 40; ++id) {
    EXPECT_EQ(log_.WaitForEnd(id).tokens, (Tokens{5, 6, 7, 5, 6}));
  }
  EXPECT_EQ(factory_->calls().made, 40);
  // The last slots are told with the next plan.
  (void)Ask(MakeRequest(41, "", 1));
  EXPECT_EQ(factory_->calls().alive, 0);
}

TEST_P(ConstraintTest, EndingTheEngineEndsWhatIsPrepared) {
  Start(/*step_ms=*/2);
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(engine_->Submit(MakeRequest(id, "make-slow=100 loop 5")).ok());
  }
  ASSERT_TRUE(engine_->Submit(MakeRequest(4, "")).ok());
  engine_.reset();
  for (uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(log_.Get(id).finals, 1) << id;
}

TEST_P(ConstraintTest, ADuplicateIdIsRefusedWhileTheFirstIsPrepared) {
  Start();
  ASSERT_TRUE(engine_->Submit(MakeRequest(1, "make-slow=100 5")).ok());
  EXPECT_EQ(engine_->Submit(MakeRequest(1, "6")).code(), Code::kInternal);
  EXPECT_EQ(log_.WaitForEnd(1).tokens, Tokens{5});
}

INSTANTIATE_TEST_SUITE_P(Scheduling, ConstraintTest, ::testing::Bool(), [](const auto& param) {
  return std::string(param.param ? "Asynchronous" : "Synchronous");
});

TEST(ConstraintlessTest, WithoutAMakerConstraintsAreRefused) {
  EventLog log;
  EngineConfig config;
  config.load_format = "stand-in";
  auto engine = StartEngine(config, log.sink(), nullptr);
  ASSERT_TRUE(engine.ok());
  EXPECT_FALSE(engine.value()->info().constraints);
  const Status status = engine.value()->Submit(MakeRequest(1, "5"));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("not available"));
}

// The time in the queue is known as soon as it is over, not when the first step ends.
TEST(StartedTest, TheStartIsToldBeforeTheStepIsComputed) {
  for (const bool async : {false, true}) {
    EventLog log;
    EngineConfig config;
    config.load_format = "stand-in";
    config.stand_in_step_ms = 1500;
    config.async_scheduling = async;
    auto engine = StartEngine(config, log.sink(), nullptr);
    ASSERT_TRUE(engine.ok());
    const auto start = steady_clock::now();
    ASSERT_TRUE(engine.value()->Submit(MakeRequest(1, "", 1)).ok());
    EXPECT_EQ(log.WaitForStart(1).tokens.size(), 0u);
    EXPECT_LT(steady_clock::now() - start, std::chrono::milliseconds(1400));
    EXPECT_EQ(log.WaitForEnd(1).events, 2);
  }
}

}  // namespace
}  // namespace baltoro
