#include "flags/picture_buckets.h"

#include <gmock/gmock.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PictureBucketsTest, SharesAreMadeToHaveTheSumOne) {
  const auto read = ParsePictureBuckets("{(256, 512, 1): 1, ( 720,1280,1 ) : 3,}");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(read.value(), ElementsAre(PictureBucket{256, 512, 0.25},
                                        PictureBucket{.height = 720, .width = 1280, .share = .75}));
}

TEST(PictureBucketsTest, KeysMayBeTextAndASizeWithoutAShareMayBeAnything) {
  const auto read = ParsePictureBuckets(R"x({"(28, 28, 1)": 0.5, '(720, 1280, 16)': 0.0})x");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(read.value(), ElementsAre(PictureBucket{28, 28, 1}));
}

TEST(PictureBucketsTest, WhatIsWrongIsNamed) {
  const auto why = [](const char* text) { return ParsePictureBuckets(text).status().message(); };
  for (const char* text : {"", "{", "{}x", "[(1, 1, 1)]", "{(1, 1): 1}", "{(1, 1, 1) 1}",
                           "{(1, 1, 1): 1 (2, 2, 1): 1}", "{\"(1, 1, 1): 1}", "{(1, 1, 1): x}"}) {
    EXPECT_THAT(why(text), HasSubstr("--random-mm-bucket-config: expected shares of sizes"))
        << text;
  }
  EXPECT_THAT(why("{}"), HasSubstr("no size has a share"));
  EXPECT_THAT(why("{(1, 1, 1): 0}"), HasSubstr("no size has a share"));
  EXPECT_THAT(why("{(1, 1, 1): -1}"), HasSubstr("from 0"));
  EXPECT_THAT(why("{(720, 1280, 16): 1}"), HasSubstr("only pictures"));
  EXPECT_THAT(why("{(0, 1, 1): 1}"), HasSubstr("1 to 65500 pixels"));
}

}  // namespace
}  // namespace baltoro
