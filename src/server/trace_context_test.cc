#include "server/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace baltoro {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c";
const std::string kRest = "-b7ad6b7169203331-01";

std::string TraceIdOf(const std::string& traceparent) {
  return ReadTraceContext(traceparent, "").trace_id;
}

TEST(TraceContextTest, TheTraceIsReadFromWhatTheStandardAllows) {
  EXPECT_EQ(TraceIdOf("00-" + kTrace + kRest), kTrace);
  EXPECT_EQ(TraceIdOf("cc-" + kTrace + kRest), kTrace);
  EXPECT_EQ(TraceIdOf("cc-" + kTrace + kRest + "-what-comes-later"), kTrace);
}

TEST(TraceContextTest, AnythingElseIsNoTrace) {
  const std::string zero(32, '0'), upper = "0AF7651916CD43DD8448EB211C80319C";
  for (const std::string& header :
       {std::string(), kTrace, "ff-" + kTrace + kRest, "0x-" + kTrace + kRest, "00-" + zero + kRest,
        "00-" + upper + kRest, "00-" + kTrace + "-0000000000000000-01",
        "00-" + kTrace + "-b7ad6b7169203331-0", "00-" + kTrace + "-b7ad6b7169203331-0g",
        "00_" + kTrace + kRest, "00-" + kTrace + kRest + "-more", "cc-" + kTrace + kRest + "more",
        "00-" + kTrace + "\n" + kRest.substr(1)}) {
    const TraceContext none = ReadTraceContext(header, "vendor=1");
    EXPECT_EQ(none.trace_id + none.parent_id + none.state, "") << header;
    EXPECT_TRUE(none.sampled) << header;
  }
}

TEST(TraceContextTest, TheParentAndWhetherItIsRecordedAreReadToo) {
  const TraceContext context = ReadTraceContext("00-" + kTrace + kRest, "");

  EXPECT_EQ(context.parent_id, "b7ad6b7169203331");
  EXPECT_TRUE(context.sampled);
  EXPECT_FALSE(ReadTraceContext("00-" + kTrace + "-b7ad6b7169203331-00", "").sampled);
  EXPECT_FALSE(ReadTraceContext("00-" + kTrace + "-b7ad6b7169203331-0e", "").sampled);
  EXPECT_TRUE(ReadTraceContext("00-" + kTrace + "-b7ad6b7169203331-0f", "").sampled);
}

TEST(TraceContextTest, AStateIsPassedOnAsItIsOrNotAtAll) {
  const auto state = [](const std::string& header) {
    return ReadTraceContext("00-" + kTrace + kRest, header).state;
  };
  for (const std::string& good : {std::string("rojo=00f067aa0ba902b7, congo=t61rcWkgMzE"),
                                  std::string("a=,b=2"), std::string("a=1,,b=2")}) {
    EXPECT_EQ(state(good), good);
  }
  std::string many = "k=v";
  for (int i = 0; i < 32; ++i) many += ",k=v";
  for (const std::string& bad : {std::string("no-value"), std::string("=v"), std::string("a=\x01"),
                                 std::string("a=\xc3\xa9"), many, "a=" + std::string(511, 'x')}) {
    EXPECT_EQ(state(bad), "") << bad;
  }
}

}  // namespace
}  // namespace baltoro
