#include "flags/media_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Read {
  int64_t pictures = -1, videos = -1;
  std::vector<std::string> notices;
  std::string error;
};

Read Limits(const Json& limits) {
  Read out;
  MediaOptions options;
  out.error = ReadMediaLimits(limits, out.notices, options).message();
  out.pictures = options.pictures_max;
  out.videos = options.videos_max;
  return out;
}

TEST(MediaOptionsTest, TheNumberOfPicturesIsRead) {
  EXPECT_EQ(Limits(Json::object()).pictures, 999);
  EXPECT_EQ(Limits({{"image", 0}, {"video", 0}}).pictures, 0);
  const Read read = Limits({{"image", 4}});
  EXPECT_EQ(read.pictures, 4);
  EXPECT_THAT(read.notices, IsEmpty());
  EXPECT_EQ(Limits({{"image", {{"count", 7}}}}).pictures, 7);
  EXPECT_EQ(Limits({{"video", 3}}).videos, 3);
  EXPECT_EQ(Limits({{"image", 4}}).videos, 999);
}

TEST(MediaOptionsTest, WhatChangesNothingGetsALine) {
  EXPECT_THAT(Limits({{"audio", 2}}).notices, ElementsAre(HasSubstr("no effect here: audio")));
  EXPECT_THAT(Limits({{"image", {{"count", 2}, {"width", 512}}}}).notices,
              ElementsAre(HasSubstr("image: sizes have no effect")));
}

TEST(MediaOptionsTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(Limits({{"images", 1}}).error, HasSubstr("images: no such key"));
  for (const Json& wrong : {Json(-1), Json(1.5), Json("2"), Json(nullptr), Json(1e300),
                            Json(UINT64_MAX), Json{{"count", -2}}}) {
    EXPECT_THAT(Limits({{"image", wrong}}).error, HasSubstr("image: expected")) << wrong;
  }
}

TEST(MediaOptionsTest, HostsAreNamesInFull) {
  MediaOptions options;
  ASSERT_TRUE(ReadMediaHosts({"A.Example", "[::1]", "::2", "10.0.0.1"}, options).ok());
  EXPECT_THAT(options.hosts, ElementsAre("a.example", "::1", "::2", "10.0.0.1"));
  EXPECT_FALSE(options.any_public_host);
  ASSERT_TRUE(ReadMediaHosts({"*"}, options).ok());
  EXPECT_TRUE(options.any_public_host);
  for (const char* wrong :
       {"", "*.a.example", "https://a.example", "a.example:80", "a.example/", "a b"}) {
    EXPECT_THAT(ReadMediaHosts({wrong}, options).message(), HasSubstr("the whole name of a host"))
        << wrong;
  }
}

}  // namespace
}  // namespace baltoro
