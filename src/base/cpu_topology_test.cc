#include "base/cpu_topology.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "support/support.h"

namespace baltoro {
namespace {

CpuSet SetOf(int first, int last) {
  CpuSet out;
  for (int cpu = first; cpu <= last; ++cpu) out.Add(cpu);
  return out;
}

class CpuTopologyTest : public ::testing::Test {
 protected:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = dir_.path() + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void Siblings(int cpu,
                const std::string& list,
                const std::string& name = "thread_siblings_list") {
    Write("cpu/cpu" + std::to_string(cpu) + "/topology/" + name, list);
  }
  // Cores of two hyperthreads, n and n + 4.
  void FourCores() {
    for (int cpu = 0; cpu < 8; ++cpu) {
      const int first = cpu % 4;
      Siblings(cpu, std::to_string(first) + "," + std::to_string(first + 4) + "\n");
    }
  }
  CpuTopology Read(const CpuSet& allowed) { return ReadCpuTopology(allowed, dir_.path()); }

  test::TempDir dir_;
};

TEST_F(CpuTopologyTest, HyperthreadsOfACoreAreOneCore) {
  FourCores();

  const CpuTopology found = Read(SetOf(0, 7));

  EXPECT_EQ(found.cpus, 8);
  EXPECT_EQ(found.cores, 4);
  EXPECT_EQ(found.core_cpus[1], (std::vector<int>{1, 5}));
  EXPECT_EQ(found.core_cpus[5], (std::vector<int>{1, 5}));
}

TEST_F(CpuTopologyTest, RangesAndTheNewerNameAreRead) {
  for (int cpu = 0; cpu < 4; ++cpu) Siblings(cpu, cpu < 2 ? "0-1\n" : "2-3\n", "core_cpus_list");

  EXPECT_EQ(Read(SetOf(0, 3)).cores, 2);
}

TEST_F(CpuTopologyTest, OnlyAllowedCpusCount) {
  FourCores();

  const CpuTopology found = Read(SetOf(2, 4));  // both of no core; 4 is the second of core 0

  EXPECT_EQ(found.cpus, 3);
  EXPECT_EQ(found.cores, 3);
  EXPECT_EQ(found.core_cpus[4], std::vector<int>{4});
  EXPECT_TRUE(found.core_cpus[0].empty());
}

TEST_F(CpuTopologyTest, NodesAreThoseOfAllowedCpus) {
  Write("node/node0/cpulist", "0-3\n");
  Write("node/node1/cpulist", "\n");  // memory alone
  Write("node/node10/cpulist", "4-7\n");
  Write("node/possible", "0-10\n");
  Write("node/nodes/cpulist", "0-7\n");

  EXPECT_EQ(Read(SetOf(0, 7)).nodes, (std::vector<int>{0, 10}));
  EXPECT_EQ(Read(SetOf(5, 6)).nodes, std::vector<int>{10});
  EXPECT_EQ(Read(SetOf(2, 2)).nodes, std::vector<int>{0});
}

TEST_F(CpuTopologyTest, WithoutFilesEachCpuIsACoreOfOneNode) {
  const CpuTopology found = Read(SetOf(0, 5));

  EXPECT_EQ(found.cpus, 6);
  EXPECT_EQ(found.cores, 6);
  EXPECT_EQ(found.nodes, std::vector<int>{0});
}

TEST_F(CpuTopologyTest, WhatMakesNoSenseCountsAsMissing) {
  const char* const wrong[] = {
      "",    "x",   "1",       "0-",  "-1",      "1-0", "0,,1", "0,1x",
      "1,0", "0 1", "0-1,1-2", "0;1", "0,1\n\n", ",0",  "0,",   "0-99999999999999999999"};
  for (const char* const list : wrong) {
    Siblings(0, list);
    Siblings(1, list);
    Write("node/node3/cpulist", std::string(list) + ",");
    const CpuTopology found = Read(SetOf(0, 1));
    EXPECT_EQ(found.cores, 2) << list;
    EXPECT_EQ(found.nodes, std::vector<int>{0}) << list;
  }
}

TEST_F(CpuTopologyTest, CpusThatContradictEachOtherAreEachCountedOnce) {
  Siblings(0, "0-1");
  Siblings(1, "1-2");
  Siblings(2, "0-2147483647");

  const CpuTopology found = Read(SetOf(0, 2));

  EXPECT_EQ(found.cores, 2);
  EXPECT_EQ(found.core_cpus[2], std::vector<int>{2});
}

TEST_F(CpuTopologyTest, NoCpusAreNoCores) {
  FourCores();

  const CpuTopology found = Read(CpuSet());

  EXPECT_EQ(found.cpus, 0);
  EXPECT_EQ(found.cores, 0);
  EXPECT_EQ(found.nodes, std::vector<int>{0});
}

TEST_F(CpuTopologyTest, AThreadGoesToACoreOfItsOwnWhileThereIsOne) {
  FourCores();
  const CpuSet all = SetOf(0, 7);
  const CpuTopology found = Read(all);
  const auto free = [&](const std::vector<int>& taken) {
    const CpuSet set = FreeCpus(all, found, taken);
    std::vector<int> out;
    for (int cpu = 0; cpu < set.end(); ++cpu) {
      if (set.has(cpu)) out.push_back(cpu);
    }
    return out;
  };

  EXPECT_EQ(free({1}), (std::vector<int>{0, 2, 3, 4, 6, 7}));
  EXPECT_EQ(free({1, 4, 7, -1, 99}), (std::vector<int>{2, 6}));
  EXPECT_EQ(free({0, 1, 2, 3}), (std::vector<int>{4, 5, 6, 7}));
  EXPECT_EQ(free({0, 1, 2, 3, 5, 6}), (std::vector<int>{4, 7}));
  EXPECT_TRUE(free({0, 1, 2, 3, 4, 5, 6, 7}).empty());
}

TEST_F(CpuTopologyTest, ThisMachineHasNoMoreCoresThanCpus) {
  const CpuTopology found = ReadCpuTopology(CpuSet::Allowed());

  EXPECT_GE(found.cores, 1);
  EXPECT_LE(found.cores, found.cpus);
}

TEST_F(CpuTopologyTest, QuotasOfBothVersions) {
  EXPECT_EQ(ControlGroupCpus(dir_.path()), -1);
  Write("cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(ControlGroupCpus(dir_.path()), -1);
  Write("cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(ControlGroupCpus(dir_.path()), -1);
  Write("cpu/cpu.cfs_quota_us", "250000\n");
  EXPECT_EQ(ControlGroupCpus(dir_.path()), 2.5);
  for (const char* const none : {"max 100000\n", "400000\n", "400000 0\n", "x"}) {
    Write("cpu.max", none);
    EXPECT_EQ(ControlGroupCpus(dir_.path()), -1) << none;
  }
  Write("cpu.max", "400000 100000\n");
  EXPECT_EQ(ControlGroupCpus(dir_.path()), 4);
}

TEST_F(CpuTopologyTest, AThreadForEachCoreThatTheQuotaPaysFor) {
  FourCores();
  const CpuTopology found = Read(SetOf(0, 7));

  EXPECT_EQ(ThreadsByDefault(found, -1), 4);
  EXPECT_EQ(ThreadsByDefault(found, 6), 4);
  EXPECT_EQ(ThreadsByDefault(found, 2.5), 3);
  EXPECT_EQ(ThreadsByDefault(found, 0.1), 1);
  EXPECT_GE(ThreadsByDefault(Read(CpuSet()), -1), 1);
}

}  // namespace
}  // namespace baltoro
