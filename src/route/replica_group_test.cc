#include "route/replica_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <set>
#include <thread>

#include "engine/testing/event_log.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::Told;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// An engine whose events the test makes.
class Puppet final : public Engine {
 public:
  explicit Puppet(EventSink sink) : sink_(std::move(sink)) { info_.num_blocks = 100; }

  Status Submit(Request request) override {
    if (on_submit) on_submit(request);
    const std::lock_guard lock(mutex_);
    if (!refusal.ok()) return refusal;
    has_.insert(request.id);
    return {};
  }
  void Abort(RequestId id) override {
    if (Has(id)) End(static_cast<uint64_t>(id), FinishReason::kAbort);
  }
  EngineStats stats() const override { return {.running = 1, .generation_tokens = 5}; }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override {
    return {.trouble = healthy ? EngineTrouble::kNone : EngineTrouble::kEnded, .next_start = {}};
  }
  Status end() const override { return ended; }

  bool Has(RequestId id) const {
    const std::lock_guard lock(mutex_);
    return has_.contains(id);
  }
  void Say(TokenEvent event) {
    if (event.finish != FinishReason::kNone) {
      const std::lock_guard lock(mutex_);
      if (has_.erase(event.request) == 0) return;
    }
    std::vector<TokenEvent> events;
    events.push_back(std::move(event));
    sink_(std::move(events));
  }
  void Start(uint64_t id) {
    TokenEvent event;
    event.request = RequestId{id};
    event.started = true;
    Say(std::move(event));
  }
  void Token(uint64_t id, TokenId token) {
    TokenEvent event;
    event.request = RequestId{id};
    event.tokens = {token};
    Say(std::move(event));
  }
  void End(uint64_t id, FinishReason finish = FinishReason::kStop) {
    TokenEvent event;
    event.request = RequestId{id};
    event.finish = finish;
    Say(std::move(event));
  }
  void Die() {
    healthy = false;
    std::set<RequestId> lost;
    {
      const std::lock_guard lock(mutex_);
      lost.swap(has_);
      refusal = Status(Code::kUnavailable, "gone");
    }
    std::vector<TokenEvent> events;
    for (const RequestId id : lost) {
      events.emplace_back().request = id;
      events.back().Fail(Status(Code::kUnavailable, kEngineLost));
    }
    if (!events.empty()) sink_(std::move(events));
  }
  void Recover() {
    const std::lock_guard lock(mutex_);
    refusal = {};
    healthy = true;
  }

  Status refusal, ended;
  std::atomic<bool> healthy = true;
  std::function<void(const Request&)> on_submit;

 private:
  const EventSink sink_;
  EngineInfo info_;
  mutable std::mutex mutex_;
  std::set<RequestId> has_;
};

class ReplicaGroupTest : public ::testing::Test {
 protected:
  void Start(int32_t count) {
    puppets_.resize(static_cast<size_t>(count));
    auto started = ReplicaGroup::Start(
        count,
        [&](int32_t replica, EventSink sink) -> Result<std::unique_ptr<Engine>> {
          auto puppet = std::make_unique<Puppet>(std::move(sink));
          puppets_[static_cast<size_t>(replica)] = puppet.get();
          return std::unique_ptr<Engine>(std::move(puppet));
        },
        log_.sink());
    ASSERT_TRUE(started.ok());
    group_ = std::move(started).value();
  }
  static Request Make(uint64_t id, size_t tokens, TokenId token = 1) {
    Request request;
    request.id = RequestId{id};
    request.prompt.assign(tokens, token);
    return request;
  }
  // The replicas that have it.
  std::vector<size_t> Where(uint64_t id) const {
    std::vector<size_t> out;
    for (size_t i = 0; i < puppets_.size(); ++i) {
      if (puppets_[i]->Has(RequestId{id})) out.push_back(i);
    }
    return out;
  }
  void Finish(uint64_t id) { puppets_[Where(id).front()]->End(id); }

  EventLog log_;
  std::vector<Puppet*> puppets_;
  std::unique_ptr<Engine> group_;
};

TEST_F(ReplicaGroupTest, RequestsAreSpread) {
  Start(3);
  for (uint64_t id = 0; id < 6; ++id) {
    ASSERT_TRUE(group_->Submit(Make(id, 10, static_cast<TokenId>(id))).ok());
    EXPECT_THAT(Where(id), ElementsAre(id % 3));
  }
  EXPECT_EQ(group_->replicas().size(), 3);
  EXPECT_EQ(group_->stats().running, 3);
  EXPECT_EQ(group_->stats().generation_tokens, 15);
}

TEST_F(ReplicaGroupTest, APromptGoesWhereItsPrefixIs) {
  Start(3);
  ASSERT_TRUE(group_->Submit(Make(1, 1000, 5)).ok());
  Finish(1);
  for (uint64_t id = 2; id < 6; ++id) {
    ASSERT_TRUE(group_->Submit(Make(id, 1100, 5)).ok());
    EXPECT_THAT(Where(id), ElementsAre(0));
  }
  // Until the others would be sooner: four requests with a rest of a hundred tokens each.
  Request other = Make(9, 1000, 5);
  other.cache_salt = "of somebody else";
  ASSERT_TRUE(group_->Submit(other).ok());
  EXPECT_THAT(Where(9), ElementsAre(1));
}

TEST_F(ReplicaGroupTest, WhatIsNotAnsweredMovesAndTheRestEnds) {
  Start(2);
  ASSERT_TRUE(group_->Submit(Make(1, 10)).ok());
  ASSERT_TRUE(group_->Submit(Make(2, 10, 2)).ok());
  ASSERT_TRUE(group_->Submit(Make(3, 10, 3)).ok());
  ASSERT_TRUE(group_->Submit(Make(5, 10, 5)).ok());
  EXPECT_THAT(Where(1), ElementsAre(0));
  EXPECT_THAT(Where(3), ElementsAre(0));
  puppets_[0]->Start(1);
  puppets_[0]->Token(1, 7);
  puppets_[0]->Start(3);
  puppets_[0]->Die();
  const Told one = log_.Get(1), three = log_.Get(3);
  EXPECT_EQ(one.finish, FinishReason::kLost);
  EXPECT_EQ(one.finals, 1);
  EXPECT_EQ(three.finals, 0);
  EXPECT_THAT(Where(3), ElementsAre(1));
  puppets_[1]->Start(3);
  puppets_[1]->Token(3, 8);
  Finish(3);
  EXPECT_THAT(log_.Get(3).tokens, ElementsAre(8));
  EXPECT_EQ(log_.Get(3).starts, 1);
  EXPECT_EQ(log_.Get(3).finals, 1);
  // The other one has all that is new, until the first is back.
  for (uint64_t id = 10; id < 13; ++id) {
    ASSERT_TRUE(group_->Submit(Make(id, 10)).ok());
    EXPECT_THAT(Where(id), ElementsAre(1));
  }
  EXPECT_TRUE(group_->healthy());
  puppets_[0]->Recover();
  ASSERT_TRUE(group_->Submit(Make(20, 10, 9)).ok());
  EXPECT_THAT(Where(20), ElementsAre(0));
}

TEST_F(ReplicaGroupTest, WhoseReplicasDieAgainAndAgainEnds) {
  Start(2);
  ASSERT_TRUE(group_->Submit(Make(1, 10)).ok());
  for (int i = 0; i < 10 && !Where(1).empty(); ++i) {
    Puppet& has = *puppets_[Where(1).front()];
    has.Die();
    has.Recover();
  }
  EXPECT_EQ(log_.Get(1).finish, FinishReason::kLost);
  EXPECT_EQ(log_.Get(1).finals, 1);
}

TEST_F(ReplicaGroupTest, WithoutAReplicaRequestsAreRefusedAndLostOnesEnd) {
  Start(2);
  ASSERT_TRUE(group_->Submit(Make(1, 10)).ok());
  puppets_[1]->Die();
  puppets_[0]->Die();
  EXPECT_EQ(log_.Get(1).finish, FinishReason::kLost);
  EXPECT_FALSE(group_->healthy());
  EXPECT_EQ(group_->Submit(Make(2, 10)).code(), Code::kUnavailable);
  EXPECT_TRUE(group_->end().ok());
  puppets_[0]->ended = Status(Code::kInternal, "never again");
  EXPECT_TRUE(group_->end().ok());
  puppets_[1]->ended = Status(Code::kInternal, "neither");
  EXPECT_EQ(group_->end().message(), "never again");
}

TEST_F(ReplicaGroupTest, AFullQueueIsPassedOver) {
  Start(2);
  puppets_[0]->refusal = Status(Code::kResourceExhausted, "the queue is full");
  ASSERT_TRUE(group_->Submit(Make(1, 10)).ok());
  EXPECT_THAT(Where(1), ElementsAre(1));
  puppets_[1]->Die();
  EXPECT_EQ(group_->Submit(Make(2, 10)).code(), Code::kResourceExhausted);
  puppets_[0]->refusal = InvalidArgument("never");
  EXPECT_EQ(group_->Submit(Make(3, 10)).code(), Code::kInvalidArgument);
}

TEST_F(ReplicaGroupTest, AReplicaCanBeAskedFor) {
  Start(3);
  for (uint64_t id = 1; id < 5; ++id) {
    Request request = Make(id, 10);
    request.replica = 2;
    ASSERT_TRUE(group_->Submit(request).ok());
    EXPECT_THAT(Where(id), ElementsAre(2));
  }
  Request none = Make(9, 10);
  none.replica = 3;
  EXPECT_THAT(group_->Submit(none).message(), HasSubstr("0 to 2"));
  puppets_[2]->Die();
  EXPECT_EQ(log_.Get(1).finish, FinishReason::kLost);  // it may not go elsewhere
  Request away = Make(10, 10);
  away.replica = 2;
  const Status refused = group_->Submit(away);
  EXPECT_EQ(refused.code(), Code::kUnavailable);
  EXPECT_THAT(refused.message(), HasSubstr("data parallel rank 2 is not running"));
}

TEST_F(ReplicaGroupTest, AnAbortFindsItsReplicaWhenItComesBesideTheSubmission) {
  Start(2);
  puppets_[0]->on_submit = [&](const Request& request) { group_->Abort(request.id); };
  ASSERT_TRUE(group_->Submit(Make(1, 10)).ok());
  EXPECT_EQ(log_.Get(1).finish, FinishReason::kAbort);
  ASSERT_TRUE(group_->Submit(Make(2, 10)).ok());
  group_->Abort(RequestId{2});
  EXPECT_EQ(log_.Get(2).finish, FinishReason::kAbort);
  group_->Abort(RequestId{77});
}

TEST_F(ReplicaGroupTest, AReplicaThatCannotStartIsTold) {
  const auto started = ReplicaGroup::Start(
      3,
      [&](int32_t replica, EventSink sink) -> Result<std::unique_ptr<Engine>> {
        if (replica == 1) return InvalidArgument("no such model");
        return std::unique_ptr<Engine>(std::make_unique<Puppet>(std::move(sink)));
      },
      log_.sink());
  ASSERT_FALSE(started.ok());
  EXPECT_EQ(started.status().message(), "no such model");
}

// Requests from several threads while replicas die and come back: each ends once.
TEST_F(ReplicaGroupTest, NothingIsLostOrDoubledWhileReplicasDie) {
  Start(3);
  constexpr uint64_t kClients = 4, kEach = 300;
  std::atomic<bool> stop = false;
  std::jthread reaper([&] {
    for (size_t i = 0; !stop; ++i) {
      Puppet& one = *puppets_[i % 3];
      one.Die();
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      one.Recover();
    }
  });
  std::vector<std::jthread> servers;
  for (Puppet* puppet : puppets_) {
    servers.emplace_back([&stop, puppet] {
      while (!stop) {
        for (uint64_t id = 0; id < kClients * kEach; ++id) {
          if (!puppet->Has(RequestId{id})) continue;
          puppet->Token(id, 1);
          puppet->End(id);
        }
      }
    });
  }
  std::array<std::atomic<int>, kClients* kEach> taken = {};
  {
    std::vector<std::jthread> clients;
    for (uint64_t client = 0; client < kClients; ++client) {
      clients.emplace_back([&, client] {
        for (uint64_t i = 0; i < kEach; ++i) {
          const uint64_t id = client * kEach + i;
          taken[id] = group_->Submit(Make(id, 70, static_cast<TokenId>(id % 5))).ok();
        }
      });
    }
  }
  int answered = 0;
  for (uint64_t id = 0; id < taken.size(); ++id) {
    if (taken[id] == 0) continue;
    const Told told = log_.WaitForEnd(id);
    ASSERT_EQ(told.finals, 1) << id;
    answered += told.finish == FinishReason::kStop ? 1 : 0;
  }
  stop = true;
  EXPECT_GT(answered, 0);
}

}  // namespace
}  // namespace baltoro
