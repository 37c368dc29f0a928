#include "flags/node_options.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

NodeOptions Find(const NodeFlags& flags, const Environment& environment, int ranks = 4) {
  std::string notice;
  const Result<NodeOptions> found = FindNodes(flags, environment, ranks, notice);
  EXPECT_TRUE(found.ok()) << found.status().message();
  return found.ok() ? found.value() : NodeOptions{};
}
std::string Refusal(const NodeFlags& flags, const Environment& environment, int ranks = 4) {
  std::string notice;
  return FindNodes(flags, environment, ranks, notice).status().message();
}
std::string Text(const NodeOptions& options) {
  return std::to_string(options.node) + "/" + std::to_string(options.nodes) + " " +
         options.master_addr + ":" + std::to_string(options.master_port) + " " + options.source;
}

const Environment kTorchrun = {{"WORLD_SIZE", "2"}, {"RANK", "1"},        {"LOCAL_WORLD_SIZE", "1"},
                               {"GROUP_RANK", "1"}, {"MASTER_ADDR", "a"}, {"MASTER_PORT", "4000"}};
const Environment kSlurm = {{"SLURM_STEP_ID", "0"},
                            {"SLURM_STEP_NUM_NODES", "4"},
                            {"SLURM_STEP_NUM_TASKS", "4"},
                            {"SLURM_NODEID", "3"},
                            {"SLURM_STEP_NODELIST", "n[07-08,11],m2"}};

TEST(NodeOptionsTest, OneNodeUnlessSomebodySaysMore) {
  EXPECT_EQ(Find({}, {}).nodes, 1);
  EXPECT_EQ(Find({}, {}).source, "");
}

TEST(NodeOptionsTest, FlagsGoBeforeTorchrunAndTorchrunBeforeSlurm) {
  EXPECT_EQ(Text(Find({.nodes = 2, .node = 1, .master_addr = "h"}, kTorchrun)),
            "1/2 h:29501 the command line");
  EXPECT_EQ(Text(Find({.nodes = 2, .master_addr = "127.0.0.1"}, {})),
            "0/2 127.0.0.1:29501 the command line");
  Environment both = kTorchrun;
  both.insert(kSlurm.begin(), kSlurm.end());
  EXPECT_EQ(Text(Find({}, both)), "1/2 a:4000 torchrun");
  EXPECT_EQ(Text(Find({}, kSlurm)), "3/4 n07:29501 SLURM");
  EXPECT_EQ(Text(Find({.master_port = 5000, .master_addr = "ib0"}, kSlurm)), "3/4 ib0:5000 SLURM");
  EXPECT_EQ(Find({.nodes = 1}, kSlurm).nodes, 1);
}

TEST(NodeOptionsTest, TorchrunKeepsItsPortForItself) {
  Environment environment = kTorchrun;
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(Find({}, environment).master_port, 4001);
  environment["LOCAL_WORLD_SIZE"] = "8";
  EXPECT_NE(Refusal({}, environment).find("--nproc-per-node 1"), std::string::npos);
  environment["WORLD_SIZE"] = "two";
  EXPECT_NE(Refusal({}, environment).find("WORLD_SIZE=two"), std::string::npos);
}

TEST(NodeOptionsTest, SlurmCountsOnlyWithOneTaskANode) {
  std::string notice;
  Environment environment = kSlurm;
  environment["SLURM_STEP_NUM_TASKS"] = "32";
  EXPECT_EQ(FindNodes({}, environment, 4, notice).value().nodes, 1);
  EXPECT_NE(notice.find("--ntasks-per-node 1"), std::string::npos);
  environment.erase("SLURM_STEP_ID");  // a shell of the job, not a step
  notice.clear();
  EXPECT_EQ(FindNodes({}, environment, 4, notice).value().nodes, 1);
  EXPECT_EQ(notice, "");
  // Servers that need no other node are told nothing of them.
  EXPECT_EQ(FindNodes({}, kSlurm, 1, notice).value().nodes, 1);
  EXPECT_NE(notice.find("a server of its own"), std::string::npos);
}

TEST(NodeOptionsTest, WhatDoesNotFitIsRefused) {
  EXPECT_NE(Refusal({.nodes = 3}, {}).find("4 ranks"), std::string::npos);
  EXPECT_NE(Refusal({.nodes = 2, .node = 2}, {}).find("--node-rank 2"), std::string::npos);
  EXPECT_NE(Refusal({.node = 1}, {}).find("below --nnodes 1"), std::string::npos);
  EXPECT_NE(Refusal({.nodes = 2}, {}, 1).find("1 ranks"), std::string::npos);
  // Not to wait for minutes at an address that no other machine reaches.
  EXPECT_NE(Refusal({.nodes = 2}, {}).find("need --master-addr"), std::string::npos);
  EXPECT_NE(Refusal({.nodes = 2, .node = 1}, {}).find("need --master-addr"), std::string::npos);
}

TEST(NodeOptionsTest, TheFirstHostOfAList) {
  EXPECT_EQ(FirstHost("alone"), "alone");
  EXPECT_EQ(FirstHost("a,b"), "a");
  EXPECT_EQ(FirstHost("node[01-04,07],other"), "node01");
  EXPECT_EQ(FirstHost("node[7]"), "node7");
  EXPECT_EQ(FirstHost("rack[1-2]n[3-4]-ib,x"), "rack1n3-ib");
  EXPECT_EQ(FirstHost("gpu-a-[0010-0020]"), "gpu-a-0010");
  EXPECT_EQ(FirstHost("broken[1"), "");
  EXPECT_EQ(FirstHost(""), "");
}

TEST(NodeOptionsTest, CommandsForNodesAreThoseOfThisOne) {
  const std::vector<std::string> args = {"serve", "/m",     "-tp", "16",  "--api-key", "a",
                                         "b",     "--port", "1",   "--x", "{\"a\": 1}"};
  EXPECT_EQ(
      NodeCommands(args, 2),
      "(umask 077; openssl rand -hex 32 > cluster.key)   # once; then on every node, without Ray:\n"
      "baltoro serve /m -tp 16 --api-key ... --port 1 --x '{\"a\": 1}' --nnodes 2 --node-rank 0 "
      "--master-addr ADDRESS_OF_NODE_0 --cluster-key-file cluster.key\n"
      "baltoro serve /m -tp 16 --api-key ... --port 1 --x '{\"a\": 1}' --nnodes 2 --node-rank 1 "
      "--master-addr ADDRESS_OF_NODE_0 --cluster-key-file cluster.key --headless\n");
}

}  // namespace
}  // namespace baltoro
