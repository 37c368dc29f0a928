#include "server/trace_context.h"

#include <gtest/gtest.h>

#include <string>

namespace baltoro {
namespace {

const std::string kTrace = "0af7651916cd43dd8448eb211c80319c";
const std::string kRest = "-b7ad6b7169203331-01";

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
    EXPECT_EQ(TraceIdOf(header), "") << header;
  }
}

}  // namespace
}  // namespace baltoro
