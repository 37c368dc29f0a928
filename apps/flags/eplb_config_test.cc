#include "flags/eplb_config.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

TEST(EplbConfigTest, ItsKeysAreVllms) {
  std::vector<std::string> notices;
  const Json config = {{"window_size", 5},
                       {"step_interval", 7},
                       {"num_redundant_experts", 4},
                       {"log_balancedness", true},
                       {"log_balancedness_interval", 3},
                       {"use_async", false},
                       {"policy", "default"},
                       {"communicator", "torch_gloo"}};
  const Result<BalanceConfig> read = ReadEplbConfig(config, true, notices);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read.value(), (BalanceConfig{.enabled = true,
                                         .redundant_experts = 4,
                                         .window = 5,
                                         .interval = 7,
                                         .gradual = false,
                                         .log_interval = 3}));
  ASSERT_EQ(notices.size(), 1U);
  EXPECT_TRUE(notices[0].starts_with("--eplb-config: communicator has no effect here"));
  EXPECT_EQ(ReadEplbConfig(Json::object(), true, notices).value(), BalanceConfig{.enabled = true});
}

TEST(EplbConfigTest, WithoutTheFlagItIsForNothing) {
  std::vector<std::string> notices;
  EXPECT_EQ(ReadEplbConfig(Json::object(), false, notices).value(), BalanceConfig());
  EXPECT_TRUE(notices.empty());
  EXPECT_EQ(ReadEplbConfig({{"window_size", 5}}, false, notices).value(), BalanceConfig());
  EXPECT_EQ(notices, std::vector<std::string>{
                         "--eplb-config has no effect here: --enable-eplb is not given"});
}

TEST(EplbConfigTest, WhatIsWrongIsNamed) {
  const auto said = [](const Json& config, bool enabled = true) {
    std::vector<std::string> notices;
    return ReadEplbConfig(config, enabled, notices).status().message();
  };
  EXPECT_EQ(said({{"window_sise", 5}}),
            "--eplb-config: window_sise: no such key; did you mean window_size?");
  EXPECT_EQ(said({{"step_interval", 0}}),
            "--eplb-config: step_interval: it is 0, expected a whole number from 1 to 1000000000");
  EXPECT_EQ(said({{"step_interval", 2}, {"window_size", 129}}),
            "--eplb-config: window_size: 129 steps are more than 64 times step_interval, give 128 "
            "at most");
  EXPECT_EQ(said({{"use_async", "yes"}}), "--eplb-config: use_async: expected true or false");
  EXPECT_EQ(said({{"policy", "swipe"}}),
            "--eplb-config: policy: \"swipe\" is not known; there is \"default\" alone");
  EXPECT_EQ(said({{"num_redundant_experts", 2}}, false),
            "--eplb-config: num_redundant_experts: it needs --enable-eplb, without which no expert "
            "has a copy");
}

}  // namespace
}  // namespace baltoro
