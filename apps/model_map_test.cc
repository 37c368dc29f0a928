#include "model_map.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "model_location.h"
#include "support/support.h"

namespace baltoro {
namespace {

using ::testing::HasSubstr;

TEST(ModelMapTest, AListHasPairs) {
  const Result<ModelMap> map = ReadModelMap("moonshotai/K2=pocket, /data/k25/ = /models/a=b ,");
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map.value(), (ModelMap{{"moonshotai/K2", "pocket"}, {"/data/k25", "/models/a=b"}}));
  EXPECT_EQ(*FindMapped(map.value(), "/data/k25/"), "/models/a=b");
  EXPECT_EQ(FindMapped(map.value(), "k2"), nullptr);
  EXPECT_TRUE(ReadModelMap(" ").value().empty());
}

TEST(ModelMapTest, AFileHasAPairOnEachLine) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/models.map";
  std::ofstream(path) << "# a remark\n\na/b = pocket  # another\nc/d=/models/e,f\n";
  const Result<ModelMap> map = ReadModelMap(path);
  ASSERT_TRUE(map.ok()) << map.status().message();
  EXPECT_EQ(map.value(), (ModelMap{{"a/b", "pocket"}, {"c/d", "/models/e,f"}}));
  std::ofstream(path) << "a/b=pocket\nc/d\n";
  EXPECT_THAT(ReadModelMap(path).status().message(), HasSubstr("models.map:2: `c/d` is no NAME"));
}

TEST(ModelMapTest, AByteOrderMarkIsNoPartOfAName) {
  const test::TempDir dir;
  const std::string path = dir.path() + "/models.map";
  std::ofstream(path) << "\xef\xbb\xbf"
                         "a/b=pocket\n";
  EXPECT_EQ(ReadModelMap(path).value(), (ModelMap{{"a/b", "pocket"}}));
}

TEST(ModelMapTest, ErrorsNameTheVariable) {
  EXPECT_THAT(ReadModelMap("/nowhere").status().message(), HasSubstr("BALTORO_MODEL_MAP /nowhere"));
  EXPECT_THAT(ReadModelMap("a=,b=c").status().message(), HasSubstr("BALTORO_MODEL_MAP: `a=`"));
  EXPECT_THAT(ReadModelMap("a=b,a=c").status().message(), HasSubstr("two models: b and c"));
  EXPECT_TRUE(ReadModelMap("a=b,a=b").ok());
}

TEST(ModelMapTest, ANameLeadsToWhatTheMapSaysAndNoFurther) {
  setenv(kModelMapVariable, "one/name=pocket/model,other/name=one/name", /*overwrite=*/1);
  const Result<std::string> found = LocateModel("one/name", "/nowhere/baltoro");
  const Result<std::string> chained = LocateModel("other/name", "/nowhere/baltoro");
  unsetenv(kModelMapVariable);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found.value(), "pocket/model");
  EXPECT_THAT(chained.status().message(), HasSubstr("BALTORO_MODEL_MAP leads other/name to it"));
}

}  // namespace
}  // namespace baltoro
