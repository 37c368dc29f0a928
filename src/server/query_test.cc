#include "server/query.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(QueryTest, FieldsComeInTheirOrderAndDecoded) {
  EXPECT_THAT(ReadQuery("").value(), IsEmpty());
  EXPECT_THAT(
      ReadQuery("limit=5&after=a%20b+c&empty&x=1=2").value(),
      ElementsAre(Pair("limit", "5"), Pair("after", "a b c"), Pair("empty", ""), Pair("x", "1=2")));
  EXPECT_THAT(ReadQuery("a%3Db=%26&a=2").value(), ElementsAre(Pair("a=b", "&"), Pair("a", "2")));
}

TEST(QueryTest, APercentWithoutTwoDigitsIsRefused) {
  for (const char* query : {"a=%", "a=%2", "a=%2g", "%zz=1", "b=1&a=%-1"}) {
    EXPECT_FALSE(ReadQuery(query)) << query;
  }
}

}  // namespace
}  // namespace baltoro
