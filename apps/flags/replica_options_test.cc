#include "flags/replica_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flags/serve_options.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

std::string Error(std::vector<std::string> args) {
  args.insert(args.begin(), "/m");
  const auto parsed = ParseServe(args, {});
  const Ending* const ending = std::get_if<Ending>(&parsed);
  return ending != nullptr ? ending->err : "";
}

ReplicaOptions Read(std::vector<std::string> args) {
  args.insert(args.begin(), "/m");
  const auto parsed = ParseServe(args, {});
  const ServeOptions* const options = std::get_if<ServeOptions>(&parsed);
  EXPECT_NE(options, nullptr);
  return options != nullptr ? options->replicas : ReplicaOptions();
}

void ExpectReplicas(const ReplicaOptions& got, int32_t total, int32_t first, int32_t here) {
  EXPECT_EQ(got.total, total);
  EXPECT_EQ(got.first, first);
  EXPECT_EQ(got.here, here);
}

TEST(ReplicaOptions, OneServerHasAllOfThem) {
  ExpectReplicas(Read({}), 1, 0, 1);
  ExpectReplicas(Read({"-dp", "4"}), 4, 0, 4);
  ExpectReplicas(Read({"-dp", "4", "-dpl", "4"}), 4, 0, 4);
}

TEST(ReplicaOptions, EachOfSeveralServersHasItsOwn) {
  ExpectReplicas(Read({"-dp", "4", "-dpn", "3"}), 4, 3, 1);
  ExpectReplicas(Read({"-dp", "4", "-dpn", "0", "--data-parallel-external-lb"}), 4, 0, 1);
  ExpectReplicas(Read({"-dp", "8", "-dpl", "2", "-dpr", "4"}), 8, 4, 2);
  ExpectReplicas(Read({"-dp", "8", "-dpl", "2", "--data-parallel-hybrid-lb"}), 8, 0, 2);
}

TEST(ReplicaOptions, ReplicasThatShareExpertsAreOfOneServerOnAnyNode) {
  const ReplicaOptions one = Read({"-dp", "4", "-tp", "2", "-ep"});
  ExpectReplicas(one, 4, 0, 4);
  EXPECT_TRUE(one.share_experts);
  EXPECT_EQ(one.nodes, 1);
  const ReplicaOptions head = Read({"-dp", "16", "-dpl", "8", "-ep", "-dpa", "10.0.0.1"});
  ExpectReplicas(head, 16, 0, 16);
  EXPECT_EQ(head.nodes, 2);
  const ReplicaOptions second =
      Read({"-dp", "16", "-dpl", "8", "-dpr", "8", "--headless", "-ep", "-dpa", "10.0.0.1"});
  EXPECT_EQ(second.nodes, 2);
  EXPECT_EQ(second.node, 1);
  EXPECT_THAT(Error({"-dp", "16", "-dpl", "8", "-ep"}), HasSubstr("--data-parallel-address"));
  EXPECT_THAT(Error({"-dp", "16", "-dpl", "6", "-ep"}), HasSubstr("dealt out evenly"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "0", "-ep"}),
              HasSubstr("the head has the first ones: give 1 or more"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "2", "-dpr", "1", "--headless", "-ep"}),
              HasSubstr("--data-parallel-start-rank 1 must be a multiple"));
  EXPECT_THAT(Error({"-dp", "4", "-dpr", "1", "--headless", "-ep"}),
              HasSubstr("needs --data-parallel-size-local"));
  EXPECT_THAT(Error({"-dp", "4", "-ep", "--headless"}), HasSubstr("--data-parallel-start-rank"));
}

TEST(ReplicaOptions, TheNodesOfReplicasThatShareExpertsMeetAtTheirAddress) {
  const std::vector<std::string> args = {"/m",       "-dp",  "4",          "-dpl", "2",
                                         "-dpr",     "2",    "--headless", "-ep",  "-dpa",
                                         "10.0.0.1", "-dpp", "1234"};
  const auto parsed = ParseServe(args, {});
  const ServeOptions* const options = std::get_if<ServeOptions>(&parsed);
  ASSERT_NE(options, nullptr);
  EXPECT_EQ(options->nodes.nodes, 2);
  EXPECT_EQ(options->nodes.node, 1);
  EXPECT_EQ(options->nodes.master_addr, "10.0.0.1");
  EXPECT_EQ(options->nodes.master_port, 1234);
}

TEST(ReplicaOptions, OneDoorMayHaveThoseOfAllNodes) {
  const ReplicaOptions head = Read({"-dp", "4", "-dpl", "2", "-dpa", "10.0.0.1"});
  ExpectReplicas(head, 4, 0, 2);
  EXPECT_TRUE(head.over_nodes);
  EXPECT_EQ(head.served(), 4);
  EXPECT_EQ(head.port, 29550);
  const ReplicaOptions node = Read({"-dp", "4", "-dpl", "1", "-dpr", "3", "--headless", "-dpa",
                                    "10.0.0.1", "--data-parallel-rpc-port", "13389"});
  ExpectReplicas(node, 4, 3, 1);
  EXPECT_TRUE(node.over_nodes);
  EXPECT_EQ(node.address, "10.0.0.1");
  EXPECT_EQ(node.port, 13389);
  // Without a number of its own a node has all that follow its first.
  ExpectReplicas(Read({"-dp", "4", "-dpr", "1", "--headless", "-dpa", "10.0.0.1"}), 4, 1, 3);
  EXPECT_FALSE(Read({"-dp", "8", "-dpl", "2", "-dpr", "4"}).over_nodes);
  EXPECT_FALSE(Read({"-dp", "4"}).over_nodes);
}

TEST(ReplicaOptions, NodesOfOneDoorSayWhereItIs) {
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "2"}), HasSubstr("--data-parallel-address on each"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "2", "-dpr", "2", "--headless"}),
              HasSubstr("--data-parallel-address on each"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "2", "--headless", "-dpa", "10.0.0.1"}),
              HasSubstr("needs --data-parallel-start-rank"));
  EXPECT_THAT(Error({"-dp", "4", "-dpn", "2", "--headless", "-dpa", "10.0.0.1"}),
              HasSubstr("--data-parallel-rank"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "2", "-dpr", "2", "--headless", "-dpa", "10.0.0.1",
                     "--data-parallel-hybrid-lb"}),
              HasSubstr("--data-parallel-hybrid-lb"));
  EXPECT_THAT(Error({"--headless"}), HasSubstr("--data-parallel-start-rank"));
}

// As upstream's: the head has the web server alone, and the nodes all replicas.
TEST(ReplicaOptions, AHeadMayHaveNoReplica) {
  const ReplicaOptions head = Read({"-dp", "4", "-dpl", "0", "-dpa", "10.0.0.1"});
  EXPECT_TRUE(head.over_nodes);
  EXPECT_EQ(head.here, 0);
  EXPECT_EQ(head.served(), 4);
  for (const std::vector<std::string>& first :
       {std::vector<std::string>{"-dp", "4", "-dpa", "10.0.0.1", "--headless"},
        {"-dp", "4", "-dpl", "2", "-dpr", "0", "-dpa", "10.0.0.1", "--headless"}}) {
    EXPECT_TRUE(Read(first).over_nodes);
    EXPECT_EQ(Read(first).first, 0);
  }
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "0"}), HasSubstr("--data-parallel-address"));
  EXPECT_THAT(Error({"-dpl", "0"}), HasSubstr("--data-parallel-size 2 or more"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "0", "--data-parallel-hybrid-lb"}),
              HasSubstr("needs one"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "0", "-dpr", "2", "-dpa", "10.0.0.1"}),
              HasSubstr("--data-parallel-start-rank without --headless"));
  for (const char* here : {"0", "1"}) {
    EXPECT_THAT(Error({"-dp", "4", "-dpl", here, "-dpa", "10.0.0.1", "--engine-in-process"}),
                HasSubstr("--engine-in-process"));
  }
}

TEST(ReplicaOptions, WhatContradictsItselfIsNamed) {
  EXPECT_THAT(Error({"-dp", "4", "-dpn", "1", "-dpr", "1"}), HasSubstr("exclude each other"));
  EXPECT_THAT(Error({"-dp", "4", "-dpn", "4"}), HasSubstr("--data-parallel-rank 4"));
  EXPECT_THAT(Error({"-dp", "4", "-dpr", "3", "-dpl", "2"}),
              HasSubstr("are 0 to 3, and this node has 2"));
  EXPECT_THAT(Error({"-dp", "2", "-dpl", "3"}), HasSubstr("--data-parallel-size-local 3 is more"));
  EXPECT_THAT(Error({"-dp", "2", "-dpn", "0", "-dpl", "2"}), HasSubstr("must be 1"));
  EXPECT_THAT(Error({"-dp", "2", "--data-parallel-external-lb"}),
              HasSubstr("needs --data-parallel-rank"));
  EXPECT_THAT(Error({"-dp", "2", "--engine-in-process"}), HasSubstr("--engine-in-process"));
}

TEST(ReplicaOptions, WhatIsNotThereSaysWhatIs) {
  for (const char* start : {"0", "2"}) {
    EXPECT_THAT(Error({"-dp", "4", "-dpl", "0", "-dpr", start, "--headless", "-dpa", "127.0.0.1"}),
                HasSubstr("--data-parallel-size-local 0 with --headless"));
  }
  EXPECT_THAT(Error({"-dp", "4", "-dpn", "1", "-ep"}), HasSubstr("--enable-expert-parallel"));
  EXPECT_THAT(Error({"-dp", "4", "-dpl", "2", "-ep", "--data-parallel-hybrid-lb"}),
              HasSubstr("--enable-expert-parallel"));
  EXPECT_THAT(Error({"-dp", "2", "-pp", "2", "-n", "2", "--master-addr", "127.0.0.1"}),
              HasSubstr("--nnodes"));
}

}  // namespace
}  // namespace baltoro
