#include "device/spread_memory.h"

#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "device/buffer.h"

namespace baltoro {
namespace {

constexpr size_t kBytes = (size_t{4} << 20) + 4097;

// The policy of the page there; -1 where the system does not tell.
int PolicyAt(const void* address) {
  int policy = -1;
  return syscall(SYS_get_mempolicy, &policy, nullptr, 0, address, MPOL_F_ADDR) == 0 ? policy : -1;
}

TEST(SpreadMemoryTest, PagesAreInterleavedToTheLastByte) {
  const Buffer buffer = Buffer::Create(kBytes, "test").value();
  const Buffer other = Buffer::Create(kBytes, "test").value();
  auto* const data = static_cast<char*>(buffer.data());
  if (PolicyAt(data) != MPOL_DEFAULT) GTEST_SKIP() << "the system has no policies of memory";
  const int nodes[] = {0};

  const Status dealt = Interleave(data, kBytes, nodes);

  if (!dealt.ok()) GTEST_SKIP() << dealt.message();  // as in a container that refuses the call
  std::memset(data, 1, kBytes);
  EXPECT_EQ(PolicyAt(data), MPOL_INTERLEAVE);
  EXPECT_EQ(PolicyAt(data + kBytes - 1), MPOL_INTERLEAVE);
  EXPECT_EQ(PolicyAt(other.data()), MPOL_DEFAULT);
}

TEST(SpreadMemoryTest, NodesThatAreNotThereAreRefused) {
  const Buffer buffer = Buffer::Create(kBytes, "test").value();
  for (const int node : {-1, 1023, 1024}) {
    EXPECT_FALSE(Interleave(buffer.data(), kBytes, std::span(&node, 1)).ok()) << node;
  }
}

TEST(SpreadMemoryTest, BuffersAreSpreadWhereTheProcessRunsOnSeveralNodes) {
  const MemorySpread& spread = SpreadOfProcess();
  const Buffer large = Buffer::Create(kBytes, "test", SpreadMemory()).value();
  const Buffer small = Buffer::Create(4096, "test", SpreadMemory()).value();
  const int plain = PolicyAt(Buffer::Create(kBytes, "test").value().data());
  std::memset(large.data(), 1, kBytes);

  const bool spreads = spread.nodes.size() > 1 && spread.problem.empty();
  EXPECT_EQ(PolicyAt(large.data()), spreads ? MPOL_INTERLEAVE : plain);
  EXPECT_EQ(PolicyAt(small.data()), plain);
}

}  // namespace
}  // namespace baltoro
