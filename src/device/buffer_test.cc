#include "device/buffer.h"

#include <gtest/gtest.h>

#include <cstring>
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
