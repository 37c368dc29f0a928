#include "flags/graph_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

GraphFlags Config(const char* config) {
  GraphFlags flags;
  flags.compilation_config = Json::parse(config);
  return flags;
}

GraphOptions Read(const char* config) {
  const Result<GraphOptions> read = ReadGraphOptions(Config(config));
  EXPECT_TRUE(read.ok()) << read.status().message();
  return read.ok() ? read.value() : GraphOptions();
}

std::string Error(const GraphFlags& flags) {
  const Result<GraphOptions> read = ReadGraphOptions(flags);
  return read.ok() ? "accepted" : read.status().message();
}

TEST(GraphOptionsTest, TheKeysOfTheGuidesAreTaken) {
  const GraphOptions read =
      Read(R"({"cudagraph_capture_sizes":[4,8,16,32,64], "cudagraph_mode":"FULL_DECODE_ONLY"})");
  EXPECT_THAT(read.sizes, ElementsAre(4, 8, 16, 32, 64));
  EXPECT_FALSE(read.none);
  EXPECT_TRUE(read.notices.empty());
}

TEST(GraphOptionsTest, ModesInAnyCase) {
  EXPECT_TRUE(Read(R"({"cudagraph_mode":"none"})").none);
  EXPECT_FALSE(Read(R"({"cudagraph_mode":"Full"})").none);
  EXPECT_THAT(Read(R"({"cudagraph_mode":"piecewise"})").notices.at(0),
              HasSubstr("is taken as FULL_DECODE_ONLY"));
  EXPECT_THAT(Error(Config(R"({"cudagraph_mode":"SOME"})")),
              HasSubstr("cudagraph_mode is \"SOME\", expected NONE"));
}

TEST(GraphOptionsTest, SizesUpToTheMostThatIsAsked) {
  EXPECT_EQ(Read(R"({"max_cudagraph_capture_size":20})").size_max, 20);
  EXPECT_TRUE(Read(R"({"max_cudagraph_capture_size":20})").sizes.empty());
  EXPECT_THAT(Error(Config(R"({"max_cudagraph_capture_size":-1})")),
              HasSubstr("expected 0 or more"));
  EXPECT_TRUE(Read(R"({"max_cudagraph_capture_size":0})").none);
  EXPECT_TRUE(Read(R"({"cudagraph_capture_sizes":[]})").none);
}

TEST(GraphOptionsTest, ContradictionsAreToldWithBoth) {
  GraphFlags flags = Config(R"({"cudagraph_capture_sizes":[1]})");
  flags.capture_sizes = {1};
  EXPECT_THAT(Error(flags), HasSubstr("both given"));
  flags = {};
  flags.capture_sizes = {1, 8};
  flags.capture_size_max = 16;
  EXPECT_THAT(Error(flags), HasSubstr("given as 16, but the list ends with 8"));
  EXPECT_THAT(Error(Config(R"({"cudagraph_capture_sizes":"8"})")), HasSubstr("expected a list"));
  flags = {};
  flags.capture_sizes = {-1};
  EXPECT_THAT(Error(flags), HasSubstr("is -1, expected 1"));
}

TEST(GraphOptionsTest, OtherKeysAreToldToHaveNoEffect) {
  EXPECT_THAT(Read(R"({"mode":3})").notices.at(0), HasSubstr("mode has no effect here"));
}

}  // namespace
}  // namespace baltoro
