#include "device/buffer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <set>

namespace baltoro {
namespace {

TEST(BufferTest, MemoryIsAlignedZeroedAndWritableToTheLastByte) {
  for (const size_t bytes : {size_t{1}, size_t{4097}, (size_t{2} << 20) + 1, size_t{5} << 20}) {
    Result<Buffer> buffer = Buffer::Create(bytes, "test");
    ASSERT_TRUE(buffer.ok());
    auto* data = static_cast<unsigned char*>(buffer.value().data());

    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0);
    EXPECT_EQ(buffer.value().bytes(), bytes);
    for (size_t i = 0; i < bytes; i += 509) ASSERT_EQ(data[i], 0);
    std::memset(data, 0xAB, bytes);
  }
}

TEST(BufferTest, MovingLeavesTheSourceEmpty) {
  Buffer first = Buffer::Create(100, "test").value();
  void* data = first.data();

  Buffer second = std::move(first);

  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(first.data(), nullptr);  // NOLINT: the moved-from state is the subject
}

TEST(BufferTest, AnImpossibleSizeNamesTheAllocation) {
  const Result<Buffer> buffer =
      Buffer::Create(std::numeric_limits<size_t>::max() / 2, "weights of layer 3");

  ASSERT_FALSE(buffer.ok());
  EXPECT_EQ(buffer.status().code(), Code::kResourceExhausted);
  EXPECT_NE(buffer.status().message().find("weights of layer 3"), std::string::npos);
}

// The reason is that of the failed call, whatever was asked for the message after it.
TEST(BufferTest, TheReasonOfAFailureIsItsOwn) {
  errno = EBADF;
  const size_t too_much[] = {std::numeric_limits<size_t>::max(),
                             std::numeric_limits<size_t>::max() / 2};
  for (const size_t bytes : too_much) {
    const std::string message = Buffer::Create(bytes, "test").status().message();
    EXPECT_NE(message.find("bytes: " + std::string(std::strerror(ENOMEM)) + ";"), std::string::npos)
        << message;
  }
}

// Ends the process with 7 if what is left of an address space is told and kept to.
[[noreturn]] void AskWithLittleAddressSpace() {
  constexpr size_t kRoom = size_t{64} << 20;
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const rlim_t most = pages * static_cast<size_t>(sysconf(_SC_PAGESIZE)) + kRoom;
  const rlimit limit{.rlim_cur = most, .rlim_max = most};
  setrlimit(RLIMIT_AS, &limit);
  const size_t available = AvailableHostMemory();
  _exit(available <= kRoom && !Buffer::Create(2 * kRoom, "test").ok() ? 7 : 1);
}

TEST(BufferDeathTest, ALimitOnTheAddressSpaceCountsAsMemory) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "shadow memory takes more address space than any limit";
#endif
  EXPECT_EXIT(AskWithLittleAddressSpace(), ::testing::ExitedWithCode(7), "");
}

// Has no memory for anything.
class NoMemory final : public Memory {
 public:
  DeviceKind kind() const override { return DeviceKind::kCpu; }
  Result<void*> Allocate(size_t bytes, const std::string& what) const override {
    return Status(Code::kResourceExhausted, what + ": cannot allocate " + std::to_string(bytes));
  }
  void Free(void*, size_t) const override {}
  Status CopyIn(void*, const void*, size_t) const override { return {}; }
  Status CopyOut(void*, const void*, size_t) const override { return {}; }
  Status Copy(void*, const void*, size_t) const override { return {}; }
  Status Clear(void*, size_t) const override { return {}; }
  size_t Available() const override { return 0; }
};

TEST(ArenaDeathTest, WithoutMemoryTheProcessEndsAndSaysWhatLowersTheNeed) {
  const NoMemory none;
  EXPECT_EXIT(Arena(none).Allocate(5000), ::testing::ExitedWithCode(1),
              "out of memory: scratch memory of a step \\(lower --max-num-batched-tokens or "
              "--max-num-seqs\\): cannot allocate 5120");
  EXPECT_EQ(Arena(none).Reserve(5000).code(), Code::kResourceExhausted);
}

TEST(ArenaTest, AllocationsAreAlignedAndDisjoint) {
  Arena arena;
  std::set<char*> seen;
  for (int i = 0; i < 1000; ++i) {
    char* at = arena.AllocateArray<char>(3000);
    ASSERT_EQ(reinterpret_cast<uintptr_t>(at) % 64, 0);
    std::memset(at, i, 3000);
    seen.insert(at);
  }
  ASSERT_EQ(seen.size(), 1000);
  for (auto it = seen.begin(); std::next(it) != seen.end(); ++it) {
    ASSERT_GE(*std::next(it) - *it, 3000);
  }
}

TEST(ArenaTest, ASecondRoundOfTheSameRequestsReservesNothing) {
  Arena arena;
  const size_t sizes[] = {10, size_t{3} << 20, 5000, size_t{1} << 20};
  for (const size_t size : sizes) arena.Allocate(size);
  const size_t reserved = arena.bytes_reserved();

  for (int round = 0; round < 3; ++round) {
    arena.Reset();
    for (const size_t size : sizes) arena.Allocate(size);
  }

  EXPECT_EQ(arena.bytes_reserved(), reserved);
}

TEST(ArenaTest, WhatIsReservedIsOnePieceThatIsEnough) {
  Arena arena;
  const size_t sizes[] = {10, size_t{3} << 20, 5000, size_t{1} << 20};
  for (const size_t size : sizes) arena.Allocate(size);
  const size_t peak = arena.TakePeak();
  EXPECT_GE(peak, size_t{4} << 20);
  EXPECT_LT(peak, size_t{5} << 20);
  EXPECT_EQ(arena.TakePeak(), 0u);

  ASSERT_TRUE(arena.Reserve(peak).ok());
  EXPECT_EQ(arena.bytes_reserved(), peak);
  char* last = nullptr;
  for (const size_t size : sizes) {
    char* const at = static_cast<char*>(arena.Allocate(size));
    EXPECT_GT(at, last);
    last = at;
  }
  EXPECT_EQ(arena.bytes_reserved(), peak);
  arena.Allocate(1);
  EXPECT_GT(arena.bytes_reserved(), peak);
}

TEST(HostMemoryTest, SomeIsAvailableAndLessThanAPetabyte) {
  EXPECT_GT(AvailableHostMemory(), size_t{1} << 20);
  EXPECT_LT(AvailableHostMemory(), size_t{1} << 50);
}

}  // namespace
}  // namespace baltoro
