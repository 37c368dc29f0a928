// The door's gate and a node's replica, with stand-ins of engines in this process.

#include "route/node_replica.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "comm/rendezvous.h"
#include "engine/remote_engine.h"
#include "engine/stand_in.h"
#include "engine/testing/event_log.h"
#include "route/replica_gate.h"

namespace baltoro {
namespace {

using test::EventLog;
using test::Told;
using ::testing::HasSubstr;

constexpr const char* kKey = "a key of sixteen bytes, and more";

template <typename Condition>
bool Eventually(const Condition& condition, double seconds = 10) {
  const MonotonicClock clock;
  const Seconds end = clock.Now() + seconds;
  while (!condition()) {
    if (clock.Now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

ReplicaMeeting Meeting(int port = 0) {
  return {.head = {.host = "127.0.0.1", .port = port},
          .cluster_key = kKey,
          .replicas = 4,
          .fingerprint = {{.name = "version", .value = "1"}, {.name = "--seed", .value = "7"}}};
}

std::unique_ptr<ReplicaGate> OpenGate(int port = 0) {
  auto gate = ReplicaGate::Open(Meeting(port), 2);
  EXPECT_TRUE(gate.ok()) << gate.status().message();
  return gate.ok() ? std::move(gate).value() : nullptr;
}

Result<int> Visit(const ReplicaMeeting& meeting, int32_t replica, Seconds limit = 5) {
  return VisitGate(meeting, replica, MonotonicClock().Now() + limit);
}

std::function<bool()> After(Seconds seconds) {
  const MonotonicClock clock;
  return [clock, end = clock.Now() + seconds] { return clock.Now() > end; };
}

// --enable-expert-parallel on one of two nodes alone: both sides name it.
TEST(ReplicaGateTest, WhoBelongsToOneEngineOverNodesIsToldWhatDiffers) {
  const auto gate = OpenGate();
  WorldOptions world{.member = "node",
                     .rank = 1,
                     .ranks = 2,
                     .meeting = gate->address(),
                     .cluster_key = kKey,
                     .join_timeout = 5};
  const Status joined = JoinWorld(world).status();
  EXPECT_EQ(joined.code(), Code::kInvalidArgument);
  EXPECT_THAT(joined.message(), HasSubstr("--enable-expert-parallel"));

  world.rank = 0;
  world.listener = std::make_shared<RankSocket>(ListenAt({.host = "127.0.0.1"}).value());
  const int port = LocalAddress(world.listener->get()).value().port;
  world.meeting.port = port;
  Status led;
  std::thread head([&] { led = JoinWorld(world).status(); });
  const Status visited = Visit(Meeting(port), 1).status();
  head.join();
  for (const Status& said : {visited, led}) {
    EXPECT_EQ(said.code(), Code::kInvalidArgument);
    EXPECT_THAT(said.message(), HasSubstr("give both the same of these flags"));
  }
}

TEST(ReplicaGateTest, LetsInEachReplicaOnce) {
  const auto gate = OpenGate();
  const ReplicaMeeting meeting = Meeting(gate->address().port);
  const Result<int> two = Visit(meeting, 2), three = Visit(meeting, 3);
  ASSERT_TRUE(two.ok() && three.ok());
  const Result<int> again = Visit(meeting, 2);
  EXPECT_EQ(again.status().code(), Code::kResourceExhausted);
  EXPECT_THAT(again.status().message(), HasSubstr("a replica 2 already"));
  const int taken = gate->Take(2, After(5));
  ASSERT_GE(taken, 0);
  ASSERT_EQ(write(taken, "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(read(two.value(), &byte, 1), 1);  // plain from here on, and it waits for reads
  EXPECT_EQ(Visit(meeting, 2).status().code(), Code::kResourceExhausted);
  close(taken);
  close(two.value());
  // The engine's end is known when the next one is asked for.
  std::atomic<int> next = -2;
  std::thread taker([&] { next = gate->Take(2, After(5)); });
  EXPECT_TRUE(Eventually([&] {
    const Result<int> back = Visit(meeting, 2);
    if (back.ok()) close(back.value());
    return back.ok();
  }));
  taker.join();
  EXPECT_GE(next, 0);
  close(next);
  close(three.value());
}

TEST(ReplicaGateTest, TakingEndsWithoutAnybody) {
  const auto gate = OpenGate();
  EXPECT_LT(gate->Take(3, After(0.2)), 0);
}

TEST(ReplicaGateTest, WhoIsWrongHearsWhy) {
  const auto gate = OpenGate();
  const ReplicaMeeting right = Meeting(gate->address().port);
  const auto refusal = [&](auto change, int32_t replica = 2) {
    ReplicaMeeting meeting = right;
    change(meeting);
    const Result<int> visit = Visit(meeting, replica);
    EXPECT_EQ(visit.status().code(), Code::kInvalidArgument);
    return visit.status().message();
  };
  EXPECT_THAT(refusal([](auto& meeting) { meeting.cluster_key = "another key of many bytes"; }),
              HasSubstr("another cluster key"));
  EXPECT_THAT(refusal([](auto& meeting) { meeting.fingerprint[0].value = "2"; }),
              HasSubstr("version is \"2\" on replica 2 and \"1\" on replica 0"));
  EXPECT_THAT(refusal([](auto& meeting) { meeting.fingerprint.pop_back(); }),
              HasSubstr("--seed is not set on replica 2"));
  EXPECT_THAT(refusal([](auto& meeting) { meeting.replicas = 8; }),
              HasSubstr("started for 8 replicas"));
  EXPECT_THAT(refusal([](auto&) {}, 1), HasSubstr("--data-parallel-start-rank must be 2 or more"));
  const Result<int> right_one = Visit(right, 2);
  EXPECT_TRUE(right_one.ok());
  if (right_one.ok()) close(right_one.value());
}

TEST(ReplicaGateTest, StrangersWhoSayNothingDelayNobody) {
  const auto gate = OpenGate();
  const ReplicaMeeting meeting = Meeting(gate->address().port);
  std::vector<RankSocket> strangers;
  for (int i = 0; i < 20; ++i) {
    auto stranger = ConnectTo(meeting.head, MonotonicClock().Now() + 5);
    ASSERT_TRUE(stranger.ok());
    strangers.push_back(std::move(stranger).value());
  }
  const MonotonicClock clock;
  const Seconds begun = clock.Now();
  const Result<int> visit = Visit(meeting, 2);
  EXPECT_TRUE(visit.ok());
  EXPECT_LT(clock.Now() - begun, 2);
  if (visit.ok()) close(visit.value());
}

TEST(ReplicaGateTest, AHeadThatSaysNothingIsNotWaitedForLong) {
  auto listener = ListenAt({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listener.ok());
  const MonotonicClock clock;
  const Seconds begun = clock.Now();
  const Result<int> visit =
      Visit(Meeting(LocalAddress(listener.value().get()).value().port), 2, 0.5);
  EXPECT_EQ(visit.status().code(), Code::kUnavailable);
  EXPECT_LT(clock.Now() - begun, 3);
}

EngineConfig StandIn(double step_ms) {
  EngineConfig config;
  config.load_format = "stand-in";
  config.stand_in_step_ms = step_ms;
  config.max_num_seqs = 8;
  return config;
}

Request MakeRequest(uint64_t id, int max_tokens) {
  Request request;
  request.id = RequestId{id};
  request.prompt = {static_cast<TokenId>(id % 2000), 2, 3};
  request.stop.max_tokens = max_tokens;
  return request;
}

// A node with one replica, on a thread.
class Node {
 public:
  Node(int port, double step_ms, EngineConfig config = {})
      : replica_({.replica = 2,
                  .meeting = Meeting(port),
                  .first_patience = 10,
                  .patience = 1,
                  .taken_patience = 0.5,
                  .maker =
                      [this, step_ms, config](EventSink sink) {
                        ++made_;
                        EngineConfig own = StandIn(step_ms);
                        own.max_model_len = config.max_model_len;
                        return StartEngine(own, std::move(sink), nullptr);
                      }}),
        thread_([this] {
          said_ = replica_.Run();
          over_ = true;
        }) {}
  ~Node() { thread_.join(); }

  Status End() {
    EXPECT_TRUE(Eventually([&] { return over_.load(); }, 20));
    return over_ ? said_ : Status(Code::kInternal, "it runs");
  }
  int made() const { return made_; }

 private:
  std::atomic<int> made_ = 0;
  std::atomic<bool> over_ = false;
  Status said_;
  NodeReplica replica_;
  std::thread thread_;
};

// The door's side of the replica.
std::unique_ptr<Engine> Door(const std::shared_ptr<ReplicaGate>& gate,
                             EventLog& log,
                             const EngineInfo& info) {
  RemoteEngineOptions options;
  options.coming = {
      .name = "Replica 2",
      .take_connection =
          [gate](const std::function<bool()>& stopped) { return gate->Take(2, stopped); },
      .agreed = std::make_shared<AgreedInfo>()};
  (void)options.coming.agreed->Agree(info);
  auto engine = RemoteEngine::Start({}, options, log.sink(), nullptr);
  EXPECT_TRUE(engine.ok());
  return std::move(engine).value();
}

EngineInfo InfoOf(const EngineConfig& config) {
  EventLog log;
  return StartEngine(config, log.sink(), nullptr).value()->info();
}

TEST(NodeReplicaTest, ServesTheDoorAndLeavesWithIt) {
  std::shared_ptr<ReplicaGate> gate = OpenGate();
  EventLog log;
  auto door = Door(gate, log, InfoOf(StandIn(0)));
  EXPECT_FALSE(door->healthy());  // it has not come
  EXPECT_EQ(door->health().trouble, EngineTrouble::kNoPeer);
  EXPECT_EQ(door->Submit(MakeRequest(1, 3)).code(), Code::kUnavailable);
  Node node(gate->address().port, 0);
  ASSERT_TRUE(Eventually([&] { return door->healthy(); }));
  for (uint64_t id = 1; id <= 20; ++id) ASSERT_TRUE(door->Submit(MakeRequest(id, 20)).ok());
  for (uint64_t id = 1; id <= 20; ++id) {
    const Told told = log.WaitForEnd(id);
    EXPECT_EQ(told.tokens.size(), 20u);
    EXPECT_EQ(told.finals, 1);
  }
  EXPECT_TRUE(Eventually([&] { return door->stats().generation_tokens == 400; }));
  door.reset();
  EXPECT_TRUE(node.End().ok());
}

TEST(NodeReplicaTest, ADoorThatComesBackFindsTheEngineLoadedAndIdle) {
  std::shared_ptr<ReplicaGate> gate = OpenGate();
  const int port = gate->address().port;
  EventLog log;
  const EngineInfo info = InfoOf(StandIn(5));
  Node node(port, 5);
  {
    // A door that dies: it says nothing, and its connection ends.
    const int fd = gate->Take(2, After(10));
    ASSERT_GE(fd, 0);
    gate.reset();
    close(fd);
  }
  gate = OpenGate(port);
  ASSERT_NE(gate, nullptr);
  auto door = Door(gate, log, info);
  ASSERT_TRUE(Eventually([&] { return door->healthy(); }));
  ASSERT_TRUE(door->Submit(MakeRequest(1, 3)).ok());
  EXPECT_EQ(log.WaitForEnd(1).tokens.size(), 3u);
  EXPECT_EQ(node.made(), 1);
  door.reset();
  EXPECT_TRUE(node.End().ok());
}

TEST(NodeReplicaTest, ADoorThatStaysAwayIsAnError) {
  std::shared_ptr<ReplicaGate> gate = OpenGate();
  Node node(gate->address().port, 0);
  const int fd = gate->Take(2, After(10));
  ASSERT_GE(fd, 0);
  gate.reset();
  close(fd);
  const Status end = node.End();
  EXPECT_EQ(end.code(), Code::kNotFound);
  EXPECT_THAT(end.message(), HasSubstr("did not come within 1 s"));
}

TEST(NodeReplicaTest, ASecondOneOfTheSameNumberEndsAndSaysSo) {
  std::shared_ptr<ReplicaGate> gate = OpenGate();
  EventLog log;
  auto door = Door(gate, log, InfoOf(StandIn(0)));
  Node first(gate->address().port, 0);
  ASSERT_TRUE(Eventually([&] { return door->healthy(); }));
  Node second(gate->address().port, 0);
  const Status end = second.End();
  EXPECT_EQ(end.code(), Code::kInvalidArgument);
  EXPECT_THAT(end.message(), HasSubstr("a replica 2 already"));
  EXPECT_EQ(second.made(), 0);
  EXPECT_TRUE(door->healthy());
  door.reset();
  EXPECT_TRUE(first.End().ok());
}

TEST(NodeReplicaTest, AnEngineThatClientsWereToldOtherThingsOfIsRefused) {
  std::shared_ptr<ReplicaGate> gate = OpenGate();
  EventLog log;
  EngineInfo told = InfoOf(StandIn(0));
  told.max_model_len += 64;
  auto door = Door(gate, log, told);
  Node node(gate->address().port, 0);
  const Status end = node.End();
  EXPECT_EQ(end.code(), Code::kInvalidArgument);
  EXPECT_THAT(end.message(), HasSubstr("--max-model-len"));
  EXPECT_FALSE(door->healthy());
}

}  // namespace
}  // namespace baltoro
