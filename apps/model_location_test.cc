#include "model_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace baltoro {
namespace {

TEST(ModelLocationTest, ABareNameThatIsNotHereSaysWhoHasIt) {
  const std::pair<const char*, const char*> names[] = {
      {"Kimi-K2.5", "moonshotai/Kimi-K2.5"},
      {"kimi-k2.5-w4a8", "Eco-Tech/Kimi-K2.5-W4A8"},
      {"/nowhere/Moonlight-16B-A3B/", "moonshotai/Moonlight-16B-A3B"},
      {"DeepSeek-V2-Lite", "deepseek-ai/DeepSeek-V2-Lite"}};
  for (const auto& [name, hub] : names) {
    const Result<std::string> found = LocateModel(name, "/nowhere/baltoro");
    ASSERT_FALSE(found.ok());
    EXPECT_THAT(found.status().message(),
                ::testing::HasSubstr("`baltoro pull " + std::string(hub)));
  }
}

}  // namespace
}  // namespace baltoro
