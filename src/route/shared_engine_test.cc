// Replicas that share experts are engines of their own for whoever chooses among them.

#include "route/shared_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "engine/testing/event_log.h"
#include "route/replica_group.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

// Two replicas, of which each answers when it is told to.
class TwoPuppets final : public Engine {
 public:
  TwoPuppets(EventSink sink, int32_t replicas) : sink_(std::move(sink)) {
    info_.num_blocks = 100;
    info_.replicas = replicas;
  }
  Status Submit(Request request) override {
    replica_of[request.id] = request.replica;
    return {};
  }
  void Abort(RequestId id) override { End({id}, FinishReason::kAbort); }
  EngineStats stats() const override { return {.running = 7}; }
  EngineStats stats_of(int32_t replica) const override { return {.running = 3 + replica}; }
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override {
    return {.trouble = healthy ? EngineTrouble::kNone : EngineTrouble::kEnded, .next_start = {}};
  }
  void Profile(const ProfileAsk&, const ProfileDone& done) override {
    ++profiles;
    done({}, {{"events", 1}});
  }

  void End(const std::vector<RequestId>& ids, FinishReason finish) {
    std::vector<TokenEvent> events;
    for (const RequestId id : ids) {
      TokenEvent& event = events.emplace_back();
      event.request = id;
      event.replica = replica_of.at(id);
      event.finish = finish;
      if (finish == FinishReason::kLost) event.Fail(Status(Code::kUnavailable, kEngineLost));
    }
    sink_(std::move(events));
  }

  std::map<RequestId, int32_t> replica_of;
  bool healthy = true;
  int profiles = 0;

 private:
  const EventSink sink_;
  EngineInfo info_;
};

struct PuppetGroup {
  test::EventLog log;
  TwoPuppets* engine = nullptr;
  std::unique_ptr<Engine> group;
};

void Start(PuppetGroup& setup) {
  const auto shared = SharedEngine::Start(2, [&](EventSink sink) {
    auto engine = std::make_unique<TwoPuppets>(std::move(sink), 2);
    setup.engine = engine.get();
    return Result<std::unique_ptr<Engine>>(std::move(engine));
  });
  ASSERT_TRUE(shared.ok()) << shared.status().message();
  auto group = ReplicaGroup::Start(
      2,
      [&](int32_t replica, EventSink sink) -> Result<std::unique_ptr<Engine>> {
        return SharedEngine::Member(shared.value(), replica, std::move(sink));
      },
      setup.log.sink());
  ASSERT_TRUE(group.ok()) << group.status().message();
  setup.group = std::move(group).value();
}

Request RequestOf(uint64_t id) {
  Request request;
  request.id = RequestId{id};
  request.prompt = {1, 2, 3};
  return request;
}

TEST(SharedEngineTest, RequestsAreSharedOutAndAnswersComeBack) {
  PuppetGroup setup;
  Start(setup);
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(setup.group->Submit(RequestOf(id)).ok());
  EXPECT_NE(setup.engine->replica_of[RequestId{1}], setup.engine->replica_of[RequestId{2}]);

  setup.engine->End({RequestId{1}, RequestId{2}}, FinishReason::kStop);  // in one batch

  EXPECT_EQ(setup.log.WaitForEnd(1, 1).finish, FinishReason::kStop);
  EXPECT_EQ(setup.log.WaitForEnd(2, 1).finish, FinishReason::kStop);
}

TEST(SharedEngineTest, EachHasItsOwnStatistics) {
  PuppetGroup setup;
  Start(setup);
  const std::vector<const Engine*> replicas = setup.group->replicas();
  ASSERT_EQ(replicas.size(), 2u);
  EXPECT_EQ(replicas[0]->stats().running, 3);
  EXPECT_EQ(replicas[1]->stats().running, 4);
}

// They are one failure domain: nobody else can take what one of them had.
TEST(SharedEngineTest, AllEndTogether) {
  PuppetGroup setup;
  Start(setup);
  for (const uint64_t id : {1, 2}) ASSERT_TRUE(setup.group->Submit(RequestOf(id)).ok());
  setup.engine->healthy = false;

  setup.engine->End({RequestId{1}, RequestId{2}}, FinishReason::kLost);

  for (const uint64_t id : {1, 2}) {
    EXPECT_THAT(setup.log.WaitForEnd(id, 1).error, HasSubstr("no replica of the model is running"));
  }
  for (const Engine* replica : setup.group->replicas()) EXPECT_FALSE(replica->healthy());
  EXPECT_EQ(setup.group->Submit(RequestOf(3)).code(), Code::kUnavailable);
}

TEST(SharedEngineTest, OneRecordingIsOfAll) {
  PuppetGroup setup;
  Start(setup);
  Status status(Code::kInternal, "not called");
  setup.group->Profile(ProfileAsk(), [&](const Status& said, const Json&) { status = said; });
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(setup.engine->profiles, 1);
}

TEST(SharedEngineTest, AnotherNumberOfReplicasIsNoGroup) {
  const auto shared = SharedEngine::Start(3, [&](EventSink sink) {
    return Result<std::unique_ptr<Engine>>(std::make_unique<TwoPuppets>(std::move(sink), 2));
  });
  ASSERT_FALSE(shared.ok());
  EXPECT_THAT(shared.status().message(), HasSubstr("2 replicas, 3 were asked for"));
}

}  // namespace
}  // namespace baltoro
