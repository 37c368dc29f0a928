#include "engine/carried_things.h"

#include <gtest/gtest.h>

#include <string>

namespace baltoro {
namespace {

CarriedThing Constraint(const std::string& text) {
  return {.key = CarriedKey::OfBytes(text), .size = static_cast<int64_t>(text.size())};
}

CarriedThing Picture(uint8_t number, int64_t size, const std::string& salt = "") {
  return {.key = CarriedKey::OfHash({number}, salt), .size = size};
}

class Account : public CarriedThings {
 public:
  explicit Account(const Limits& limits) : CarriedThings(limits) {}
  Use Get(const CarriedThing& thing) { return Take(thing, last_name_); }
  Code Room(const std::vector<CarriedThing>& things) const {
    return CheckRoom(things).status().code();
  }

 private:
  uint64_t last_name_ = 0;
};

TEST(CarriedThingsTest, EqualBytesTravelOnceWhateverTheirCopies) {
  Account carried({.what = "output formats", .bytes_max = 100});
  const CarriedThings::Use first = carried.Get(Constraint(std::string(60, 'a')));
  const CarriedThings::Use same = carried.Get(Constraint(std::string(60, 'a')));
  EXPECT_TRUE(first.is_new);
  EXPECT_FALSE(same.is_new);
  EXPECT_EQ(same.name, first.name);
  EXPECT_EQ(carried.num_bytes(), 60);
}

TEST(CarriedThingsTest, WhatIsInUseIsNotDroppedAndTheRestIs) {
  Account carried({.what = "output formats", .bytes_max = 100});
  const CarriedThing a = Constraint(std::string(60, 'a')), b = Constraint(std::string(60, 'b'));
  const uint64_t name = carried.Get(a).name;
  EXPECT_EQ(carried.Room({b}), Code::kResourceExhausted);
  EXPECT_EQ(carried.Room({Constraint(std::string(101, 'c'))}), Code::kInvalidArgument);
  EXPECT_EQ(carried.CheckRoom(std::vector{a}).value(), 0);
  (void)carried.Get(a);
  carried.Release(name);
  EXPECT_EQ(carried.Room({b}), Code::kResourceExhausted);  // there is another user
  carried.Release(name);
  EXPECT_FALSE(carried.Get(a).is_new);  // kept, though idle
  carried.Release(name);
  EXPECT_EQ(carried.CheckRoom(std::vector{b}).value(), 60);
  EXPECT_TRUE(carried.TakeDropped().empty());  // to ask changes nothing
  const CarriedThings::Use other = carried.Get(b);
  EXPECT_EQ(carried.TakeDropped(), std::vector<uint64_t>{name});
  EXPECT_TRUE(carried.TakeDropped().empty());
  EXPECT_NE(other.name, name);
  EXPECT_EQ(carried.num_bytes(), 60);
}

TEST(CarriedThingsTest, IdleOnesAreBoundedInNumber) {
  const CarriedThings::Limits limits{.what = "output formats", .bytes_max = 1 << 20};
  Account carried(limits);
  std::vector<uint64_t> names;
  for (int i = 0; i < 1000; ++i) names.push_back(carried.Get(Constraint(std::to_string(i))).name);
  for (const uint64_t name : names) {
    carried.Release(name);
    ASSERT_LE(carried.num_idle(), limits.idle_max);
  }
  EXPECT_EQ(carried.num_idle(), limits.idle_max);
  names.resize(1000 - limits.idle_max);
  EXPECT_EQ(carried.TakeDropped(), names);
  EXPECT_FALSE(carried.Get(Constraint("999")).is_new);
  EXPECT_TRUE(carried.Get(Constraint("0")).is_new);
}

TEST(CarriedThingsTest, IdleOnesAreBoundedInBytes) {
  Account carried({.what = "pictures", .bytes_max = 1000, .idle_bytes_max = 100});
  std::vector<uint64_t> names;
  for (uint8_t i = 0; i < 3; ++i) names.push_back(carried.Get(Picture(i, 60)).name);
  EXPECT_EQ(carried.num_bytes(), 180);
  for (const uint64_t name : names) carried.Release(name);
  EXPECT_EQ(carried.num_bytes(), 60);
  EXPECT_EQ(carried.TakeDropped(), (std::vector<uint64_t>{names[0], names[1]}));
}

// No request is too large to be served once it is the only one, where that is wanted.
TEST(CarriedThingsTest, OneRequestMayHaveMoreThanAllTogether) {
  Account carried(
      {.what = "pictures", .bytes_max = 100, .always_one_request = true, .idle_bytes_max = 100});
  const std::vector<CarriedThing> large = {Picture(1, 80), Picture(2, 80), Picture(1, 80)};
  EXPECT_EQ(carried.CheckRoom(large).value(), 160);  // that which is there twice counts once
  std::vector<uint64_t> names;
  for (const CarriedThing& thing : large) names.push_back(carried.Get(thing).name);
  EXPECT_EQ(names[2], names[0]);
  EXPECT_EQ(carried.Room({Picture(3, 1)}), Code::kResourceExhausted);
  EXPECT_EQ(carried.Room(large), Code::kOk);  // another choice of the same
  for (const uint64_t name : names) carried.Release(name);
  EXPECT_LE(carried.num_bytes(), 100);
  EXPECT_EQ(carried.Room({Picture(3, 1)}), Code::kOk);
}

TEST(CarriedThingsTest, SaltsShareNothing) {
  Account carried({.what = "pictures", .bytes_max = 1000});
  const CarriedThings::Use one = carried.Get(Picture(1, 10, "a"));
  EXPECT_TRUE(carried.Get(Picture(1, 10, "b")).is_new);
  EXPECT_TRUE(carried.Get(Picture(1, 10)).is_new);
  EXPECT_FALSE(carried.Get(Picture(1, 10, "a")).is_new);
  EXPECT_EQ(carried.Get(Picture(1, 10, "a")).name, one.name);
}

TEST(CarriedThingsTest, ANewProcessHoldsNothing) {
  Account carried({.what = "output formats", .bytes_max = 100});
  const uint64_t old = carried.Get(Constraint("x")).name;
  carried.Clear();
  const CarriedThings::Use again = carried.Get(Constraint("x"));
  EXPECT_TRUE(again.is_new);
  carried.Release(old);  // late, and of no effect
  EXPECT_FALSE(carried.Get(Constraint("x")).is_new);
  EXPECT_NE(again.name, old);
}

}  // namespace
}  // namespace baltoro
