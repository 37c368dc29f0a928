#include "engine/carried_constraints.h"

#include <gtest/gtest.h>

#include <string>

namespace baltoro {
namespace {

TEST(CarriedConstraintsTest, EqualBytesTravelOnceWhateverTheirCopies) {
  CarriedConstraints carried(100);
  const auto first = carried.Take(std::string(60, 'a'));
  const auto same = carried.Take(std::string(60, 'a'));
  ASSERT_TRUE(first.ok() && same.ok());
  EXPECT_TRUE(first.value().is_new);
  EXPECT_FALSE(same.value().is_new);
  EXPECT_EQ(same.value().name, first.value().name);
  EXPECT_EQ(carried.num_bytes(), 60);
}

TEST(CarriedConstraintsTest, WhatIsInUseIsNotDroppedAndTheRestIs) {
  CarriedConstraints carried(100);
  const uint64_t a = carried.Take(std::string(60, 'a')).value().name;
  EXPECT_EQ(carried.Take(std::string(60, 'b')).status().code(), Code::kResourceExhausted);
  EXPECT_EQ(carried.Take(std::string(101, 'c')).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(carried.Take(std::string(60, 'a')).ok());
  carried.Release(a);
  EXPECT_FALSE(carried.Take(std::string(60, 'b')).ok());  // there is another user
  carried.Release(a);
  EXPECT_FALSE(carried.Take(std::string(60, 'a')).value().is_new);  // kept, though idle
  carried.Release(a);
  const auto b = carried.Take(std::string(60, 'b'));
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(b.value().dropped, std::vector<uint64_t>{a});
  EXPECT_NE(b.value().name, a);
  EXPECT_EQ(carried.num_bytes(), 60);
}

TEST(CarriedConstraintsTest, IdleOnesAreBoundedInNumber) {
  CarriedConstraints carried;
  size_t dropped = 0;
  for (int i = 0; i < 1000; ++i) {
    const auto use = carried.Take(std::to_string(i));
    ASSERT_TRUE(use.ok());
    dropped += use.value().dropped.size();
    carried.Release(use.value().name);
  }
  EXPECT_EQ(dropped, 1000 - CarriedConstraints::kIdleMax - 1);
}

TEST(CarriedConstraintsTest, ANewProcessHoldsNothing) {
  CarriedConstraints carried;
  const uint64_t old = carried.Take("x").value().name;
  carried.Clear();
  const auto again = carried.Take("x");
  EXPECT_TRUE(again.value().is_new);
  carried.Release(old);  // late, and of no effect
  EXPECT_FALSE(carried.Take("x").value().is_new);
  EXPECT_NE(again.value().name, old);
}

}  // namespace
}  // namespace baltoro
