#include "base/ordered_object.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>

#include "base/json.h"

namespace baltoro {
namespace {

// A key that counts how often it is looked at.
struct CountedKey {
  explicit CountedKey(std::string name) : text(std::move(name)) {}
  operator std::string_view() const {
    ++looks;
    return text;
  }

  std::string text;
  static inline int64_t looks = 0;
};

std::string Name(int i) {
  return "k" + std::to_string(i);
}

// What it takes to add `count` members and to find each again.
int64_t LooksFor(int count) {
  CountedKey::looks = 0;
  OrderedObject<CountedKey, int> object;
  for (int i = 0; i < count; ++i) object.emplace(CountedKey(Name(i)), i);
  for (int i = 0; i < count; ++i) EXPECT_EQ(object.find(Name(i))->second, i);
  EXPECT_EQ(object.size(), static_cast<size_t>(count));
  return CountedKey::looks;
}

TEST(OrderedObjectTest, WorkIsLinearInTheNumberOfMembers) {
  for (const int count : {1'000, 10'000, 100'000}) {
    EXPECT_LT(LooksFor(count), 16 * count) << count;
  }
}

TEST(OrderedObjectTest, JsonIsMadeOfIt) {
  const bool same =
      std::is_same_v<Json::object_t::iterator, OrderedObject<std::string, Json>::iterator>;
  EXPECT_TRUE(same);
}

TEST(OrderedObjectTest, KeepsOrderAndFindsWhatIsLeftAfterErasing) {
  OrderedObject<std::string, int> object;
  for (int i = 0; i < 100; ++i) object[Name(i)] = i;
  for (int i = 0; i < 100; i += 2) EXPECT_EQ(object.erase(Name(i)), 1u);
  EXPECT_EQ(object.erase("k0"), 0u);
  object.emplace("k4", 4);
  EXPECT_FALSE(object.emplace("k5", 0).second);

  std::string order;
  for (const auto& [key, value] : object) {
    order += key + " ";
    EXPECT_EQ(object.find(key)->second, value);
  }
  EXPECT_TRUE(order.starts_with("k1 k3 k5 "));
  EXPECT_TRUE(order.ends_with("k97 k99 k4 "));
  EXPECT_EQ(object.find("k2"), object.end());

  const auto next = object.erase(object.begin(), object.begin() + 45);
  EXPECT_EQ(next->first, "k91");
  EXPECT_EQ(object.size(), 6u);
  EXPECT_EQ(object.count("k1"), 0u);
  EXPECT_EQ(object.count("k4"), 1u);
  object.clear();
  EXPECT_EQ(object.count("k4"), 0u);
}

TEST(OrderedObjectTest, CopiesAndMovesFindTheirMembers) {
  OrderedObject<std::string, int> object;
  for (int i = 0; i < 50; ++i) object[Name(i)] = i;
  OrderedObject<std::string, int> copy = object;
  const OrderedObject<std::string, int> moved = std::move(object);
  copy["k7"] = -7;

  EXPECT_EQ(moved.find("k7")->second, 7);
  EXPECT_EQ(copy.find("k7")->second, -7);
  EXPECT_FALSE(copy == moved);
}

TEST(OrderedObjectTest, JsonOfManyKeysIsReadKeptAndCompared) {
  std::string text = "{";
  for (int i = 0; i < 100'000; ++i)
    text += (i ? ",\"" : "\"") + Name(i) + "\":" + std::to_string(i);

  const Json json = ParseJson(text + "}").value();

  EXPECT_EQ(json.size(), 100'000u);
  EXPECT_EQ(json["k99999"], 99999);
  EXPECT_EQ(json.begin().key(), "k0");
  EXPECT_EQ(json.dump(), text + "}");
  EXPECT_EQ(Json(json), json);
  EXPECT_FALSE(ParseJson(text + ",\"k77\":0}").ok());
  EXPECT_EQ(ParseJson(text + ",\"k77\":0}", {.reject_duplicate_keys = false}).value()["k77"], 0);
}

TEST(KeyedHashTest, SpreadsNamesThatDifferLittle) {
  std::set<uint64_t> slots;
  constexpr int kNames = 1 << 14;
  for (int i = 0; i < kNames; ++i) slots.insert(KeyedHash(Name(i)) % kNames);
  // Of n balls in n boxes 63 % of the boxes get one.
  EXPECT_GT(slots.size(), kNames * 60 / 100);
  EXPECT_EQ(KeyedHash("a name"), KeyedHash(std::string("a name")));
}

}  // namespace
}  // namespace baltoro
