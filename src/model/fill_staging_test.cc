#include "model/fill_staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/far_memory.h"

namespace baltoro {
namespace {

class FillStagingTest : public ::testing::Test {
 protected:
  FillStagingTest() { ops_.memory = &memory_; }

  test::FarMemory memory_;
  OpsTable ops_;
};

TEST_F(FillStagingTest, APlaceIsCopiedWithItsLastPiece) {
  std::vector<char> target(3000, 'x');
  FillStaging staging(ops_, {{.target = target.data(), .bytes = target.size(), .pieces = 2}});
  auto* const host = static_cast<char*>(staging.Host(0).value());
  std::memset(host, 'a', 1000);
  ASSERT_TRUE(staging.Done(0).ok());
  EXPECT_EQ(target[0], 'x');
  EXPECT_EQ(staging.Host(0).value(), host);
  std::memset(host + 1000, 'b', 1000);
  ASSERT_TRUE(staging.Done(0).ok());
  EXPECT_EQ(std::string(target.begin(), target.end()),
            std::string(1000, 'a') + std::string(1000, 'b') + std::string(1000, '\0'));
}

// As many buffers as places are open at once, whatever the number of places; and zeroed again.
TEST_F(FillStagingTest, MemoryIsUsedAgain) {
  constexpr size_t kPlaces = 200, kBytes = 1 << 20;
  std::vector<char> target(kPlaces * kBytes, 'x');
  std::vector<FillStaging::Place> places;
  for (size_t i = 0; i < kPlaces; ++i) {
    places.push_back({.target = target.data() + i * kBytes, .bytes = kBytes, .pieces = 1});
  }
  FillStaging staging(ops_, places);
  std::vector<std::jthread> threads;
  for (size_t thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      for (size_t i = thread; i < kPlaces; i += 4) {
        auto* const host = static_cast<char*>(staging.Host(i).value());
        ASSERT_EQ(host[kBytes - 1], 0);
        std::memset(host, static_cast<int>(i), kBytes - 1);
        host[kBytes - 1] = i % 2 == 0 ? 'e' : 0;
        ASSERT_TRUE(staging.Done(i).ok());
      }
    });
  }
  threads.clear();
  EXPECT_LE(staging.bytes_reserved(), 4 * kBytes);
  for (size_t i = 0; i < kPlaces; ++i) {
    EXPECT_EQ(target[i * kBytes], static_cast<char>(i));
    EXPECT_EQ(target[(i + 1) * kBytes - 1], i % 2 == 0 ? 'e' : 0);
  }
}

TEST_F(FillStagingTest, ACopyThatFailsIsTheErrorOfThePiece) {
  char target = 0;
  memory_.broken = true;
  FillStaging staging(ops_, {{.target = &target, .bytes = 1, .pieces = 1}});
  ASSERT_TRUE(staging.Host(0).ok());
  EXPECT_EQ(staging.Done(0).message(), "no way to the card");
}

}  // namespace
}  // namespace baltoro
