#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/utf8.h"
#include "grammar/json_schema.h"

namespace baltoro {
namespace {

using testing::StartsWith;

std::vector<std::string> UncheckedOf(const Json& schema) {
  GrammarBuilder builder;
  JsonSchemaOptions options;
  options.name = "tools[0]";
  std::vector<std::string> unchecked;
  const auto made = AddJsonSchema(builder, schema, options, &unchecked);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return unchecked;
}

Json WithUnknownKeywords(int count) {
  Json schema = {{"type", "object"}, {"properties", {{"a", {{"type", "string"}}}}}};
  for (int i = 0; i < count; ++i) schema["madeUp" + std::to_string(i)] = i;
  return schema;
}

TEST(JsonSchemaUncheckedTest, WhatIsBeyondSixtyFourIsCounted) {
  EXPECT_EQ(UncheckedOf(WithUnknownKeywords(64)).size(), 64u);
  const std::vector<std::string> unchecked = UncheckedOf(WithUnknownKeywords(100));
  ASSERT_EQ(unchecked.size(), 65u);
  EXPECT_EQ(unchecked.front(), "tools[0]: madeUp0");
  EXPECT_EQ(unchecked.back(), "tools[0]: and 36 more");
}

TEST(JsonSchemaUncheckedTest, PathsAreCutAtTwoHundredBytesBetweenCharacters) {
  std::string key = "k";
  for (int i = 0; i < 300; ++i) key += "\u00e9";
  Json schema = {{"type", "object"}, {"properties", Json::object()}};
  schema["properties"][key] = {{"type", "string"}, {"madeUp", 1}};
  const std::vector<std::string> unchecked = UncheckedOf(schema);
  ASSERT_EQ(unchecked.size(), 1u);
  EXPECT_THAT(unchecked[0], StartsWith("tools[0].properties.k\u00e9"));
  EXPECT_THAT(unchecked[0], testing::EndsWith("...: madeUp"));
  EXPECT_LE(unchecked[0].size(), 200 + std::string("...: madeUp").size());
  EXPECT_TRUE(IsValidUtf8(unchecked[0])) << unchecked[0];
}

}  // namespace
}  // namespace baltoro
