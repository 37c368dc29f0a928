// Once a size has been seen, a call takes no memory.

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "comm/test_ranks.h"

namespace {

thread_local size_t allocations = 0;

void* Take(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return Take(bytes);
}
void* operator new[](size_t bytes) {
  return Take(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}

namespace baltoro {
namespace {

using test::AllOf;
using test::Group;
using test::WorldKind;

class AllocationTest : public ::testing::TestWithParam<WorldKind> {};
INSTANTIATE_TEST_SUITE_P(Worlds,
                         AllocationTest,
                         ::testing::Values(WorldKind::kThreads, WorldKind::kUnixSockets),
                         test::KindName);

TEST_P(AllocationTest, CallsOfSizesSeenTakeNoMemory) {
  test::RunRanks(GetParam(), 3, [](std::unique_ptr<Link> link) {
    const auto all = Group(link.get(), "all", AllOf(*link));
    const std::vector<size_t> counts = {40000, 0, 30001};
    std::vector<float> few(3584), many(70001), part(counts[static_cast<size_t>(link->rank())]);
    const std::span<std::byte> bytes = std::as_writable_bytes(std::span(many));
    const auto calls = [&] {
      bool ok = all->AllReduceSum(few).ok() && all->AllReduceSum(many).ok();
      ok = ok && all->ReduceScatterSum(many, counts, part).ok();
      ok = ok && all->AllGather(bytes.first(part.size()), counts, bytes.first(70001)).ok();
      return ok && all->Broadcast(bytes, 1).ok() && all->Barrier().ok();
    };
    // A message alternates between slots, so that twice is what it takes to have seen all.
    ASSERT_TRUE(calls() && calls() && calls());
    const size_t before = allocations;
    EXPECT_GT(before, 0u);
    for (int round = 0; round < 5; ++round) ASSERT_TRUE(calls());
    EXPECT_EQ(allocations, before);
  });
}

}  // namespace
}  // namespace baltoro
