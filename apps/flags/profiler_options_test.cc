#include "flags/profiler_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(const Json& config) {
  std::vector<std::string> notices;
  return ReadProfilerOptions(config, notices).status().message();
}

TEST(ProfilerOptionsTest, UpstreamsConfigurationIsTaken) {
  std::vector<std::string> notices;
  const ProfilerOptions options = ReadProfilerOptions({{"profiler", "torch"},
                                                       {"torch_profiler_dir", "/tmp/p/"},
                                                       {"torch_profiler_use_gzip", false},
                                                       {"torch_profiler_with_stack", true}},
                                                      notices)
                                      .value();

  EXPECT_EQ(options.dir, "/tmp/p");
  EXPECT_FALSE(options.gzip);
  EXPECT_THAT(notices, ElementsAre(HasSubstr("torch_profiler_with_stack: no effect")));
}

TEST(ProfilerOptionsTest, WithoutAProfilerThereIsNone) {
  std::vector<std::string> notices;
  EXPECT_EQ(ReadProfilerOptions(Json::object(), notices).value().dir, "");
  EXPECT_EQ(ReadProfilerOptions({{"profiler", nullptr}}, notices).value().dir, "");
}

TEST(ProfilerOptionsTest, WhatIsWrongIsNamed) {
  EXPECT_THAT(ErrorOf({{"profiler", "torch"}}), HasSubstr("torch_profiler_dir: expected an absol"));
  EXPECT_THAT(ErrorOf({{"profiler", "torch"}, {"torch_profiler_dir", "here"}}), HasSubstr("absol"));
  EXPECT_THAT(ErrorOf({{"torch_profiler_dir", "/p"}}), HasSubstr("needs \"profiler\""));
  EXPECT_THAT(ErrorOf({{"profiler", "cuda"}}), HasSubstr("nsys"));
  EXPECT_THAT(ErrorOf({{"profiler", "other"}}), HasSubstr("expected \"torch\""));
  EXPECT_THAT(ErrorOf({{"dir", "/p"}}), HasSubstr("dir: no such key"));
  EXPECT_THAT(ErrorOf({{"torch_profiler_use_gzip", 1}}), HasSubstr("true or false"));
}

}  // namespace
}  // namespace baltoro
