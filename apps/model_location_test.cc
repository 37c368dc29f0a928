#include "model_location.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
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

TEST(ModelLocationTest, ThePocketModelHasAName) {
  setenv("BALTORO_POCKET", "pocket", 1);  // of this checkout, in which tests run
  const Result<std::string> unnamed = LocateModel("", "/nowhere/baltoro");
  const Result<std::string> named = LocateModel("pocket", "/nowhere/baltoro");
  unsetenv("BALTORO_POCKET");
  ASSERT_TRUE(named.ok()) << named.status().message();
  EXPECT_EQ(named.value(), unnamed.value());
  EXPECT_THAT(named.value(), ::testing::EndsWith("/model"));
}

class PocketDraftsTest : public ::testing::Test {
 protected:
  PocketDraftsTest() {
    for (const char* folder : {"model", "draft-mla", "draft-llama"}) {
      std::filesystem::create_directories(pocket_ + "/" + folder);
      std::ofstream(pocket_ + "/" + folder + "/config.json") << "{}";
    }
    setenv("BALTORO_POCKET", pocket_.c_str(), 1);
    std::filesystem::current_path(pocket_);  // where no folder has the drafts' names
  }
  ~PocketDraftsTest() override {
    std::filesystem::current_path(was_);
    unsetenv("BALTORO_POCKET");
    std::filesystem::remove_all(pocket_);
  }

  const std::filesystem::path was_ = std::filesystem::current_path();
  const std::string pocket_ =
      std::filesystem::canonical(::testing::TempDir()).string() + "/pocket_drafts_of_this_test";
};

TEST_F(PocketDraftsTest, TheFirstIsFoundForThePocketModelAlone) {
  const Result<std::string> own = LocateDraft("", pocket_ + "/model", "/nowhere/baltoro");
  ASSERT_TRUE(own.ok()) << own.status().message();
  EXPECT_EQ(own.value(), pocket_ + "/draft-mla");
  EXPECT_FALSE(LocateDraft("", pocket_ + "/draft-mla", "/nowhere/baltoro").ok());
}

TEST_F(PocketDraftsTest, EachIsFoundByItsNameWhereverTheProgramRuns) {
  for (const char* name : {"draft-mla", "draft-llama"}) {
    const auto found =
        LocateDraft(std::string("pocket/") + name, pocket_ + "/model", "/nowhere/baltoro");
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found.value(), pocket_ + "/" + name);
  }
  EXPECT_FALSE(LocateDraft("pocket/draft-none", pocket_ + "/model", "/nowhere/baltoro").ok());
}

}  // namespace
}  // namespace baltoro
