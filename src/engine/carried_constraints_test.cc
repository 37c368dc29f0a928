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
  std::vector<uint64_t> names;
  for (int i = 0; i < 1000; ++i) names.push_back(carried.Take(std::to_string(i)).value().name);
  for (const uint64_t name : names) {
    carried.Release(name);
    ASSERT_LE(carried.num_idle(), CarriedConstraints::kIdleMax);
  }
  EXPECT_EQ(carried.num_idle(), CarriedConstraints::kIdleMax);
  // The process hears of it with the next one, known or not; only the newest are held.
  const auto known = carried.Take("999").value();
  EXPECT_FALSE(known.is_new);
  names.resize(1000 - CarriedConstraints::kIdleMax);
  EXPECT_EQ(known.dropped, names);
  EXPECT_TRUE(carried.Take("0").value().is_new);
  EXPECT_TRUE(carried.Take("0").value().dropped.empty());
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
