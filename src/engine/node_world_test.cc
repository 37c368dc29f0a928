// Nodes of one replica as threads of the test: how they meet, agree, follow, and end together.

#include "engine/node_world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <latch>
#include <span>
#include <thread>
#include <utility>

#include "comm/link_communicator.h"
#include "comm/test_ranks.h"
#include "engine/node_agreement.h"
#include "engine/node_follower.h"
#include "engine/rank_team.h"
#include "parallel/nodes.h"
#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr StepPlanLimits kLimits{.max_num_seqs = 4, .num_blocks = 8, .vocab = 1000};

NodeOptions OptionsOf(int32_t node, int32_t nodes, int port) {
  return {.node = node,
          .nodes = nodes,
          .master_host = "127.0.0.1",
          .master_port = port,
          .cluster_key = test::kTestKey,
          .patience = 20};
}

// Runs body on a thread for each node, once all have joined.
template <typename Body>
void RunNodes(int32_t nodes, const Body& body) {
  const int port = test::FreePort();
  std::vector<std::jthread> threads;
  for (int32_t node = 0; node < nodes; ++node) {
    threads.emplace_back([&, node] {
      auto world = NodeWorld::Join(OptionsOf(node, nodes, port));
      ASSERT_TRUE(world.ok()) << world.status().message();
      body(std::move(world).value());
    });
  }
}

TEST(NodeWorldTest, NodesHearEachOtherAndTheHead) {
  const std::string large(300 << 10, 'x');
  RunNodes(3, [&](std::unique_ptr<NodeWorld> world) {
    const std::string own = "node " + std::to_string(world->node());
    EXPECT_THAT(world->Gather(own).value(), ElementsAre("node 0", "node 1", "node 2"));
    for (const std::string& message : {std::string("a plan"), large, std::string("another")}) {
      if (world->node() == 0) {
        EXPECT_TRUE(world->Send(message).ok());
      } else {
        EXPECT_EQ(world->Receive().value(), message);
      }
    }
    EXPECT_TRUE(world->Gather("").ok());
  });
}

TEST(NodeWorldTest, RanksMeetWhereRankZeroIs) {
  RunNodes(2, [](std::unique_ptr<NodeWorld> world) {
    const RankMeeting meeting = AgreeOnMeeting(*world, 1).value();
    EXPECT_EQ(meeting.address.host, "127.0.0.1");
    EXPECT_GT(meeting.address.port, 0);
    EXPECT_FALSE(ListenAt(meeting.address).ok()) << "somebody else could have taken it";
    ASSERT_TRUE(world->Gather("").ok());
    const auto link = world->JoinRank(meeting, 2, 1 - world->node());
    ASSERT_TRUE(link.ok()) << link.status().message();
    EXPECT_THAT(world->Gather(meeting.session).value(),
                ElementsAre(meeting.session, meeting.session));
  });
}

// One that has a number which another has waits, and hears why; another head is refused.
TEST(NodeWorldTest, WhereNodesMetThePortStaysTaken) {
  const int port = test::FreePort();
  std::latch over(2);
  std::vector<std::jthread> threads;
  threads.emplace_back([&] {
    const auto world = NodeWorld::Join(OptionsOf(1, 2, port));
    EXPECT_TRUE(world.ok());
    over.arrive_and_wait();
  });
  const auto head = NodeWorld::Join(OptionsOf(0, 2, port));
  ASSERT_TRUE(head.ok());
  EXPECT_THAT(ListenAt({.host = "127.0.0.1", .port = port}).status().message(),
              HasSubstr("in use"));
  NodeOptions options = OptionsOf(1, 2, port);
  options.patience = 0.5;
  // It is waited for as long as the head is there.
  std::atomic<bool> back = false;
  std::thread late([&] {
    const Status status = NodeWorld::Join(options).status();
    EXPECT_EQ(status.code(), Code::kNotFound);
    back = true;
  });
  NodeOptions other = OptionsOf(1, 3, port);
  const Status differs = NodeWorld::Join(other).status();
  EXPECT_EQ(differs.code(), Code::kInvalidArgument);
  EXPECT_THAT(differs.message(), HasSubstr("node 1 was started for 3 nodes, node 0 for 2"));
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  EXPECT_FALSE(back);
  over.arrive_and_wait();
  const_cast<std::unique_ptr<NodeWorld>&>(head.value()).reset();
  late.join();
}

// A node may come later than an attempt of another one lasts: nobody leaves for it.
TEST(NodeWorldTest, NodesThatComeLateAreWaitedFor) {
  const int port = test::FreePort();
  std::vector<std::jthread> threads;
  const auto join = [&](int32_t node) {
    threads.emplace_back([node, port] {
      const auto world = NodeWorld::Join(OptionsOf(node, 4, port));
      ASSERT_TRUE(world.ok()) << node << ": " << world.status().message();
      EXPECT_EQ(world.value()->Gather("here").value().size(), 4u);
    });
  };
  join(0);
  join(1);
  std::this_thread::sleep_for(std::chrono::milliseconds(4500));
  join(2);
  join(3);
}

// Somebody else has the port.
TEST(NodeWorldTest, AHeadThatCannotListenSaysSo) {
  const int port = test::FreePort();
  const auto taken = ListenAt({.host = "127.0.0.1", .port = port});
  ASSERT_TRUE(taken.ok());
  const auto world = NodeWorld::Join(OptionsOf(0, 2, port));
  EXPECT_EQ(world.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(world.status().message(), HasSubstr("--master-port"));
  EXPECT_THAT(world.status().message(), HasSubstr("in use"));
}

TEST(NodeWorldTest, TheFlagsThatWereGivenAreNamed) {
  const int port = test::FreePort();
  const auto taken = ListenAt({.host = "127.0.0.1", .port = port});
  ASSERT_TRUE(taken.ok());
  NodeOptions options = OptionsOf(0, 2, port);
  options.host_flag = "--data-parallel-address";
  options.port_flag = "--data-parallel-rpc-port";
  const auto world = NodeWorld::Join(options);
  EXPECT_EQ(world.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(world.status().message(), HasSubstr("an address of its own in "
                                                  "--data-parallel-address and a free port in "
                                                  "--data-parallel-rpc-port"));
}

TEST(NodeWorldTest, NobodyWaitsForEver) {
  NodeOptions options = OptionsOf(1, 2, test::FreePort());
  options.patience = 0.5;
  const auto lost = NodeWorld::Join(options);
  ASSERT_FALSE(lost.ok());
  EXPECT_EQ(lost.status().code(), Code::kNotFound);
  EXPECT_THAT(lost.status().message(), HasSubstr("the head node at 127.0.0.1:"));
  options.node = 0;
  EXPECT_THAT(NodeWorld::Join(options).status().message(), HasSubstr("missing after"));
}

TEST(NodeWorldTest, WhatDiffersIsSaidOnBothSides) {
  const int port = test::FreePort();
  std::string said[2];
  {
    std::vector<std::jthread> threads;
    for (int32_t node = 0; node < 2; ++node) {
      threads.emplace_back([&, node] {
        EngineConfig config;
        config.max_num_seqs = 8 + node;
        NodeOptions options = OptionsOf(node, 2, port);
        options.fingerprint = FingerprintOf(config, "cpu bf16 on avx512");
        const auto world = NodeWorld::Join(options);
        EXPECT_EQ(world.status().code(), Code::kInvalidArgument);
        said[node] = world.status().message();
      });
    }
  }
  for (const std::string& text : said) {
    EXPECT_THAT(text, HasSubstr("--max-num-seqs"));
    EXPECT_THAT(text, HasSubstr("8"));
    EXPECT_THAT(text, HasSubstr("9"));
  }
}

TEST(NodeAgreementTest, AModelIsKnownByItsConfigurationAndItsFiles) {
  const test::TempDir dir;
  const auto write = [&](const std::string& name, const std::string& text) {
    std::ofstream(dir.path() + "/" + name) << text;
  };
  EXPECT_FALSE(HashModel(dir.path()).ok());
  write("config.json", "{}");
  const std::string bare = HashModel(dir.path()).value();
  write("model.safetensors", "1234");
  const std::string whole = HashModel(dir.path()).value();
  write("notes.txt", "any");
  EXPECT_NE(whole, bare);
  EXPECT_EQ(HashModel(dir.path()).value(), whole);
  write("model.safetensors", "12345");
  EXPECT_NE(HashModel(dir.path()).value(), whole);
}

TEST(NodeAgreementTest, TheSmallestCacheIsThatOfAll) {
  RunNodes(2, [](std::unique_ptr<NodeWorld> world) {
    const KvQuestion question{.bytes_asked = (world->node() + 1) * (int64_t{1} << 20),
                              .bytes_available = int64_t{1} << 30,
                              .bytes_per_token = 64,
                              .model_len = 4096,
                              .max_model_len = -1};
    const KvBudget own = PlanKvCache(question).value();
    const KvBudget agreed = AgreeOnCache(*world, own, question).value();
    EXPECT_EQ(agreed.bytes, int64_t{1} << 20);
    EXPECT_EQ(agreed.num_blocks, (1 << 20) / 64 / 64);
  });
}

TEST(NodeAgreementTest, LengthsThatDifferAreRefusedOnAllNodes) {
  RunNodes(2, [](std::unique_ptr<NodeWorld> world) {
    const KvQuestion question{.bytes_asked = 1 << 20,
                              .bytes_available = int64_t{1} << 30,
                              .bytes_per_token = 64,
                              .model_len = 4096,
                              .max_model_len = 1000 + world->node()};
    const auto agreed = AgreeOnCache(*world, PlanKvCache(question).value(), question);
    ASSERT_FALSE(agreed.ok());
    EXPECT_THAT(agreed.status().message(), HasSubstr("1000"));
    EXPECT_THAT(agreed.status().message(), HasSubstr("1001"));
  });
}

// Adds its rank and the step to what comes from the stage before it.
class AddingWorker final : public RankWorker {
 public:
  AddingWorker(Link* link, int32_t stages) : link_(link), stages_(stages) {
    std::vector<int32_t> all;
    for (int32_t i = 0; i < stages; ++i) all.push_back(i);
    group_ = JoinGroup(link, {.name = "stages", .ranks = all}).value();
  }
  Status TakeResult(const StepResult& result) override {
    told_ += result.step;
    return {};
  }
  Result<StepResult> Run(const StepPlan& plan) override {
    uint64_t sum = 0;
    const auto bytes = std::as_writable_bytes(std::span(&sum, 1));
    if (link_->rank() > 0) BT_RETURN_IF_ERROR(group_->Receive(bytes, link_->rank() - 1));
    sum += plan.step + told_;
    if (link_->rank() + 1 < stages_) BT_RETURN_IF_ERROR(group_->Send(bytes, link_->rank() + 1));
    StepResult result;
    result.step = plan.step;
    result.sequences.resize(1);
    result.sequences[0].tokens = {static_cast<TokenId>(sum)};
    return result;
  }

 private:
  Link* const link_;
  const int32_t stages_;
  std::unique_ptr<Communicator> group_;
  uint64_t told_ = 0;
};

MakeRank Adding(int32_t stages) {
  return [stages](Link* link, bool) -> Result<RankParts> {
    RankParts parts;
    parts.worker = std::make_unique<AddingWorker>(link, stages);
    return parts;
  };
}

// What three stages on `nodes` nodes make of twenty plans, three in flight.
std::vector<TokenId> Sums(int32_t nodes) {
  const ParallelLayout layout{.pipeline = 3};
  std::vector<TokenId> sums;
  const auto lead = [&](RankTeam& team) {
    uint64_t started = 0;
    for (uint64_t finished = 0; finished < 20;) {
      if (started < 20 && started - finished < 3) {
        StepPlan plan;
        plan.step = ++started;
        ASSERT_TRUE(team.Start(std::move(plan)).ok());
        continue;
      }
      const auto result = team.Finish();
      ASSERT_TRUE(result.ok()) << result.status().message();
      sums.push_back(result.value().sequences[0].tokens[0]);
      ++finished;
    }
  };
  if (nodes == 1) {
    lead(*RankTeam::Start(layout, Adding(3)).value());
    return sums;
  }
  RunNodes(nodes, [&](std::unique_ptr<NodeWorld> world) {
    if (world->node() == 0) {
      const auto team = RankTeam::Start(layout, Adding(3), std::move(world));
      ASSERT_TRUE(team.ok()) << team.status().message();
      return lead(*team.value());
    }
    auto ranks = StartRanksOfNode(*world, layout, Adding(3));
    ASSERT_TRUE(ranks.ok()) << ranks.status().message();
    const NodeFollower follower({}, kLimits, layout, {nullptr, nullptr}, std::move(world),
                                std::move(ranks).value());
    // Until the head has left.
    while (follower.healthy()) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  });
  return sums;
}

TEST(NodeFollowerTest, RanksOfOtherNodesDoWhatRanksOfThisOneDo) {
  const std::vector<TokenId> expected = Sums(1);
  EXPECT_EQ(expected.size(), 20u);
  EXPECT_EQ(Sums(3), expected);
}

class IdleWorker final : public RankWorker {
 public:
  Status TakeResult(const StepResult&) override { return {}; }
  Result<StepResult> Run(const StepPlan&) override { return StepResult(); }
};

// Why the head cannot start is told on the nodes, whose own ranks are well.
TEST(NodeFollowerTest, WhyTheHeadCannotStartIsToldToAll) {
  const ParallelLayout layout{.pipeline = 2};
  RunNodes(2, [&](std::unique_ptr<NodeWorld> world) {
    const bool head = world->node() == 0;
    const MakeRank make = [head](Link*, bool) -> Result<RankParts> {
      if (head) return Status(Code::kResourceExhausted, "no room for the head");
      RankParts parts;
      parts.worker = std::make_unique<IdleWorker>();
      return parts;
    };
    const Status status = head ? RankTeam::Start(layout, make, std::move(world)).status()
                               : StartRanksOfNode(*world, layout, make).status();
    EXPECT_THAT(status.message(), HasSubstr("no room for the head"));
  });
}

// A node that goes ends what the head waits for, with its number, and what it will be asked.
TEST(NodeFollowerTest, TheHeadNoticesThatANodeIsGone) {
  const ParallelLayout layout{.pipeline = 2};
  // A node that goes while the head still hears "ready" ends the start instead.
  std::latch head_started(1);
  RunNodes(2, [&](std::unique_ptr<NodeWorld> world) {
    if (world->node() == 0) {
      const auto started_team = RankTeam::Start(layout, Adding(2), std::move(world));
      head_started.count_down();
      ASSERT_TRUE(started_team.ok()) << started_team.status().message();
      const auto& team = started_team.value();
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(5);
      while (team->status().ok() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      EXPECT_THAT(team->status().message(), AnyOf(HasSubstr("node 1"), HasSubstr("rank 1")));
      StepPlan plan;
      plan.step = 1;
      const Status started = team->Start(std::move(plan));
      EXPECT_FALSE(started.ok() && team->Finish().ok());
      return;
    }
    auto ranks = StartRanksOfNode(*world, layout, Adding(2));
    ASSERT_TRUE(ranks.ok()) << ranks.status().message();
    const NodeFollower follower({}, kLimits, layout, {nullptr, nullptr}, std::move(world),
                                std::move(ranks).value());
    head_started.wait();
    EXPECT_TRUE(follower.healthy());
  });
}

}  // namespace
}  // namespace baltoro
