#include "verify/validity.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

Json Request(const std::string& choice) {
  return ParseJson(R"({"tool_choice":)" + choice + R"(,"tools":[{"type":"function","function":{
    "name":"add","parameters":{"type":"object","properties":{"a":{"type":"integer","minimum":0},
    "of":{"$ref":"#/$defs/of"}},"required":["a"],"additionalProperties":false,
    "$defs":{"of":{"enum":["x","y"]}}}}},{"type":"function","function":{"name":"stop"}}]})")
      .value();
}

std::string Only(const std::vector<std::string>& wrong) {
  EXPECT_LE(wrong.size(), 1U);
  return wrong.empty() ? "" : wrong.front();
}

TEST(ValidityTest, ACallNamesADeclaredToolAndFitsItsSchema) {
  const Json request = Request("null");
  const auto wrong = [&](const char* name, const char* arguments) {
    return Only(WrongCalls(request, {{name, arguments}}));
  };
  EXPECT_EQ(wrong("add", R"({"a":1,"of":"y"})"), "");
  EXPECT_EQ(wrong("stop", "{}"), "");
  EXPECT_EQ(wrong("sub", "{}"), "a call names \"sub\", which is not declared");
  EXPECT_EQ(wrong("add", R"({"a":)"), "the arguments of add are no JSON: {\"a\":");
  EXPECT_EQ(wrong("add", "[1]"), "the arguments of add are no object");
  for (const char* unfit :
       {"{}", R"({"a":"1"})", R"({"a":-1})", R"({"a":1,"of":"z"})", R"({"a":1,"b":2})"}) {
    EXPECT_NE(wrong("add", unfit).find("not valid against its schema"), std::string::npos) << unfit;
  }
}

TEST(ValidityTest, WhatToolChoiceDemandsIsCalled) {
  EXPECT_EQ(Only(WrongCalls(Request("null"), {})), "");
  EXPECT_EQ(Only(WrongCalls(Request("\"auto\""), {})), "");
  EXPECT_EQ(Only(WrongCalls(Request("\"required\""), {})),
            "no tool is called, though tool_choice demands it");
  const Json named = Request(R"({"type":"function","function":{"name":"add"}})");
  EXPECT_EQ(Only(WrongCalls(named, {{"add", R"({"a":1})"}})), "");
  EXPECT_EQ(Only(WrongCalls(named, {{"stop", "{}"}})),
            "tool_choice demands add, and stop is called");
  EXPECT_EQ(Only(WrongCalls(Request("\"none\""), {{"stop", "{}"}})),
            "a tool is called, though tool_choice is none");
}

TEST(ValidityTest, ContentIsOfTheFormThatIsAskedFor) {
  const Json schema = ParseJson(R"({"response_format":{"type":"json_schema","json_schema":{
    "name":"n","schema":{"type":"object","required":["a"]}}}})")
                          .value();
  const Json object = ParseJson(R"({"response_format":{"type":"json_object"}})").value();
  EXPECT_EQ(WrongForm(schema, R"({"a":1})"), "");
  EXPECT_EQ(WrongForm(schema, "{}"), "the content is not valid against its schema: {}");
  EXPECT_EQ(WrongForm(schema, "Here: {}"), "the content is no JSON: Here: {}");
  EXPECT_EQ(WrongForm(object, "{}"), "");
  EXPECT_EQ(WrongForm(object, "1"), "the content is no JSON object");
  EXPECT_EQ(WrongForm(Json::object(), "anything"), "");
}

TEST(ValidityTest, ArgumentsAreComparedAsValues) {
  EXPECT_TRUE(SameArguments(R"({"a":1,"b":2})", R"({ "b": 2.0, "a": 1 })"));
  EXPECT_FALSE(SameArguments(R"({"a":1})", R"({"a":2})"));
  EXPECT_TRUE(SameArguments("{", "{"));
  EXPECT_FALSE(SameArguments("{", "{}"));
}

}  // namespace
}  // namespace baltoro
