#include "server/model_names.h"

#include <gmock/gmock.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;

TEST(ModelNamesTest, NamesAreToldAsTheyAreGiven) {
  const ModelNames names({"moonshotai/Kimi-K2", "k2"});

  EXPECT_THAT(names.told(), ElementsAre("moonshotai/Kimi-K2", "k2"));
  EXPECT_EQ(names.first(), "moonshotai/Kimi-K2");
  EXPECT_TRUE(names.Knows("k2"));
  EXPECT_FALSE(names.Knows("K2"));
  EXPECT_FALSE(names.Knows(""));
  EXPECT_FALSE(names.Knows("Kimi-K2"));
}

TEST(ModelNamesTest, OfAPathOnlyTheLastPartIsTold) {
  const ModelNames names({"/models/Kimi-K2/", "Kimi-K2", "/other/x"});

  EXPECT_THAT(names.told(), ElementsAre("Kimi-K2", "x"));
  EXPECT_EQ(names.ToldFor("/models/Kimi-K2/"), "Kimi-K2");
  EXPECT_TRUE(names.Knows("/models/Kimi-K2/"));
  EXPECT_TRUE(names.Knows("Kimi-K2"));
  EXPECT_FALSE(names.Knows("/models"));
  EXPECT_THAT(ModelNames({"/"}).told(), ElementsAre("model"));
}

}  // namespace
}  // namespace baltoro
