#include "engine/nvidia_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(NvidiaDriverTest, AnOldOneIsNamedWithBothRemedies) {
  const std::optional<DriverFault> fault = JudgeCudaVersion(12040);

  ASSERT_TRUE(fault.has_value());
  EXPECT_EQ(fault->what, "the NVIDIA driver has CUDA 12.4, and CUDA 13.0 is needed");
  EXPECT_THAT(fault->remedy, testing::HasSubstr("driver 580 or later"));
  EXPECT_THAT(fault->remedy, testing::HasSubstr("cuda-compat-13-0"));
}

TEST(NvidiaDriverTest, ANewOneIsNot) {
  EXPECT_FALSE(JudgeCudaVersion(13000).has_value());
  EXPECT_FALSE(JudgeCudaVersion(13010).has_value());
  EXPECT_TRUE(JudgeCudaVersion(12090).has_value());
  EXPECT_TRUE(JudgeCudaVersion(-1).has_value());
}

}  // namespace
}  // namespace baltoro
