#include "grammar/json_schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "base/gzip.h"
#include "grammar/grammar_matcher.h"

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

struct Compiled {
  Result<Grammar> grammar = InvalidArgument("not made");
  std::vector<std::string> unchecked;
};

Compiled Compile(const Json& schema, bool strict) {
  Compiled out;
  GrammarBuilder builder;
  const Result<GrammarBuilder::Expr> expr =
      AddJsonSchema(builder, schema, {.strict = strict, .name = "schema"}, &out.unchecked);
  if (!expr.ok()) {
    out.grammar = expr.status();
    return out;
  }
  const GrammarBuilder::Rule start = builder.DeclareRule("start");
  builder.DefineRule(start, expr.value());
  out.grammar = builder.Build(start);
  return out;
}

Json Reversed(const Json& value) {
  if (value.is_array()) {
    Json out = Json::array();
    for (const Json& item : value) out.push_back(Reversed(item));
    return out;
  }
  if (!value.is_object()) return value;
  Json out = Json::object();
  for (auto item = value.rbegin(); item != value.rend(); ++item) {
    out[item.key()] = Reversed(*item);
  }
  return out;
}

// As Python's json.dumps writes by default.
void AppendSpaced(const Json& value, std::string& out) {
  if (!value.is_structured()) {
    out += value.dump();
    return;
  }
  out += value.is_array() ? '[' : '{';
  bool first = true;
  for (const auto& [key, item] : value.items()) {
    if (!first) out += ", ";
    first = false;
    if (value.is_object()) out += Json(key).dump() + ": ";
    AppendSpaced(item, out);
  }
  out += value.is_array() ? ']' : '}';
}

std::vector<std::string> Spellings(const std::string& text) {
  const Json value = Json::parse(text);
  std::vector<std::string> out = {value.dump(), "", value.dump(2), Reversed(value).dump()};
  AppendSpaced(value, out[1]);
  return out;
}

struct Expectation {
  const char* schema;
  std::vector<std::string> valid, invalid;
};

void Expect(const Expectation& one) {
  SCOPED_TRACE(one.schema);
  const Compiled compiled = Compile(Json::parse(one.schema), /*strict=*/true);
  ASSERT_TRUE(compiled.grammar.ok()) << compiled.grammar.status().message();
  EXPECT_THAT(compiled.unchecked, IsEmpty());
  for (const std::string& text : one.valid) {
    EXPECT_TRUE(Matches(compiled.grammar.value(), text)) << text;
  }
  for (const std::string& text : one.invalid) {
    EXPECT_FALSE(Matches(compiled.grammar.value(), text)) << text;
  }
}

std::string ErrorOf(const char* schema, bool strict = true) {
  const Compiled compiled = Compile(Json::parse(schema), strict);
  return compiled.grammar.ok() ? "" : compiled.grammar.status().message();
}

TEST(JsonSchemaTest, EveryCaseOfTheFilesIsDecidedRight) {
  int schemas = 0, unsupported = 0, valid = 0, unwritten = 0, invalid = 0;
  for (const auto& file : std::filesystem::directory_iterator("tests/grammar/schemas")) {
    const Result<std::string> cases = ReadPlainOrGzip(file.path());
    ASSERT_TRUE(cases.ok()) << cases.status().message();
    for (const Json& one : Json::parse(cases.value())) {
      SCOPED_TRACE(one["name"].get<std::string>() + " " + one["schema"].dump());
      ++schemas;
      Compiled compiled = Compile(one["schema"], /*strict=*/true);
      const bool sound = compiled.grammar.ok();
      const Json empty = Json::array();
      const Json& good = one.contains("examples") ? one["examples"]
                         : one.contains("valid")  ? one["valid"]
                                                  : empty;
      if (!sound) {
        const std::string message = compiled.grammar.status().message();
        if (message.find("no value is valid") != std::string::npos ||
            message.find("nothing matches") != std::string::npos) {
          EXPECT_THAT(good, IsEmpty()) << message;
          continue;
        }
        EXPECT_TRUE(one.contains("unsupported")) << message;
        EXPECT_THAT(message, HasSubstr("not supported"));
        ++unsupported;
        compiled = Compile(one["schema"], /*strict=*/false);
        ASSERT_TRUE(compiled.grammar.ok()) << compiled.grammar.status().message();
        EXPECT_FALSE(compiled.unchecked.empty());
      } else {
        EXPECT_FALSE(one.contains("unsupported"));
      }
      const Grammar& grammar = compiled.grammar.value();
      const Json& silent = one.contains("unwritten") ? one["unwritten"] : empty;
      for (const Json& text : good) {
        const bool written = std::find(silent.begin(), silent.end(), text) == silent.end();
        for (const std::string& spelling : Spellings(text)) {
          EXPECT_EQ(Matches(grammar, spelling), written) << "valid: " << spelling;
        }
        ++(written ? valid : unwritten);
      }
      if (!sound || !one.contains("invalid")) continue;
      for (const Json& text : one["invalid"]) {
        for (const std::string& spelling : Spellings(text)) {
          EXPECT_FALSE(Matches(grammar, spelling)) << "invalid: " << spelling;
        }
        ++invalid;
      }
    }
  }
  std::printf(
      "%d schemas, %d unsupported when strict; %d valid texts matched, %d not written; "
      "%d invalid texts refused\n",
      schemas, unsupported, valid, unwritten, invalid);
  EXPECT_GE(schemas, 200);
}

TEST(JsonSchemaTest, ObjectsTakeTheirKeysInAnyOrderAndNoOthers) {
  const char* schema = R"({"type":"object","properties":{"a":{"type":"integer"},
      "b":{"type":"string"},"c":{"type":"boolean"}},"required":["a","b"]})";
  Expect({schema,
          {R"({"a":1,"b":"x"})", R"({"b": "", "a": -3})",
           "{\n  \"c\": true,\n  \"a\": 0,\n  \"b\": \"\\u00e9\\n\"\n}", R"({ "a":1,"b":"x" })"},
          {R"({"a":1})", "{}", R"({"a":1,"b":"x","a":2})", R"({"a":1,"b":"x","d":2})",
           R"({"a":1.5,"b":"x"})", R"({"a":1,"b":"x",})", R"({"a":1 ,"b":"x"})",
           R"({"\u0061":1,"b":"x"})"}});
  Expect({R"({"properties":{"a":{"const":1}},"additionalProperties":{"type":"boolean"}})",
          {R"({"a":1})", R"({"x":true,"a":1,"y":false})", "3", R"({"aa":true})"},
          {R"({"a":true})", R"({"x":1})", R"({"\u0061":true})"}});
  Expect({R"({"type":"object","patternProperties":{"^n_":{"type":"integer"},"s$":{"minimum":5}},
      "additionalProperties":false})",
          {R"({"n_a":1,"n_s":5,"as":7})", "{}"},
          {R"({"n_s":4})", R"({"n_a":"x"})", R"({"b":1})"}});
  Expect({R"({"type":"object","propertyNames":{"enum":["x","y"]},"minProperties":2})",
          {R"({"x":1,"y":[]})"},
          {R"({"x":1})", R"({"x":1,"z":2})", R"({"x":1,"x":2})"}});
}

TEST(JsonSchemaTest, ReferencesAreFollowedAndRecursionIsBounded) {
  const char* tree = R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{
      "v":{"type":"integer"},"next":{"$ref":"#/$defs/node"},
      "all":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["v"]}}})";
  Expect({tree,
          {R"({"v":1})", R"({"v":1,"next":{"v":2,"next":{"v":3}}})", R"({"v":1,"all":[{"v":2}]})"},
          {R"({"v":1,"next":{}})", R"({"v":1,"all":[{}]})"}});
  std::string deep;
  for (int i = 0; i < 200; ++i) deep += R"({"v":1,"next":)";
  deep += R"({"v":1})" + std::string(200, '}');
  const Compiled compiled = Compile(Json::parse(tree), true);
  EXPECT_FALSE(Matches(compiled.grammar.value(), deep));
  Expect({R"({"$id":"http://a.example/root.json","type":"array","items":{"$ref":"item.json"},
      "$defs":{"i":{"$id":"item.json","$ref":"#small","$defs":{"s":{"$anchor":"small",
      "maximum":3,"type":"integer"}}}}})",
          {"[1,2]"},
          {"[4]"}});
  EXPECT_THAT(ErrorOf(R"({"properties":{"x":{"$ref":"#/$defs/no"}}})", false),
              HasSubstr("schema.properties.x: the $ref \"#/$defs/no\" points to nothing"));
  EXPECT_THAT(ErrorOf(R"({"$ref":"http://elsewhere/x"})", false), HasSubstr("is not part of"));
  EXPECT_THAT(ErrorOf(R"({"$ref":"#"})", false), HasSubstr("refers to itself"));
  const char* circle =
      R"({"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"allOf":[{"$ref":"#/$defs/a"}]}},
      "$ref":"#/$defs/a"})";
  EXPECT_THAT(ErrorOf(circle), HasSubstr("refers to itself"));
  const char* endless = R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})";
  EXPECT_THAT(ErrorOf(endless), HasSubstr("nothing matches"));
}

TEST(JsonSchemaTest, EqualValuesAreOneHoweverTheyAreWritten) {
  Expect({R"({"allOf":[{"enum":[1,{"a":1,"b":[2]},"x",true,null]},
      {"enum":[{"b":[2.0],"a":1.0},1.0,"y",false,null]}]})",
          {"1", R"({"a":1,"b":[2]})", "null"},
          {R"("x")", R"("y")", "true", "false", R"({"a":1,"b":[3]})"}});
  Expect({R"({"enum":[1,2.5],"not":{"enum":[1.0,"1"]}})", {"2.5"}, {"1"}});
}

TEST(JsonSchemaTest, AlternativesAreToldApart) {
  Expect({R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},
      "required":["k","x"]},{"type":"object","properties":{"k":{"const":"b"},
      "y":{"type":"string"}},"required":["k"]}]})",
          {R"({"k":"a","x":1})", R"({"k":"b"})", R"({"y":"q","k":"b"})"},
          {R"({"k":"a"})", R"({"k":"b","x":1})"}});
  Expect({R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},
      "oneOf":[{"required":["a"]},{"required":["b"]}]})",
          {R"({"a":1})", R"({"b":1})"},
          {"{}", R"({"a":1,"b":1})"}});
  Expect({R"({"oneOf":[{"type":"integer","minimum":2},{"type":"integer","maximum":5}]})",
          {"1", "6", "-9"},
          {"2", "5"}});
  Expect({R"({"oneOf":[{"enum":[1,2,3]},{"enum":[3,4]}]})", {"1", "4"}, {"3", "5"}});
  Expect({R"({"anyOf":[{"type":"null"},{"type":"string","maxLength":2}]})",
          {"null", R"("ab")", R"("\ud83d\ude42a")"},
          {R"("abc")", "1", R"("\ud83d")"}});
  Expect({R"({"allOf":[{"properties":{"a":{"minimum":1}}},{"properties":{"a":{"type":"integer"}},
      "required":["a"]}],"type":"object"})",
          {R"({"a":1})"},
          {R"({"a":0})", "{}", R"({"a":1.5})"}});
  Expect({R"({"type":"object","properties":{"c":{"enum":["US","FR"]},"z":{"type":"string"}},
      "required":["c"],"if":{"properties":{"c":{"const":"US"}}},"then":{"required":["z"]},
      "else":{"properties":{"z":{"maxLength":1}}}})",
          {R"({"c":"US","z":"123"})", R"({"c":"FR"})", R"({"c":"FR","z":"1"})"},
          {R"({"c":"US"})", R"({"c":"FR","z":"12"})"}});
  Expect({R"({"type":"string","not":{"enum":["a","b"]}})",
          {R"("c")", R"("")", R"("ab")"},
          {R"("a")", R"("b")", R"("\u0061")"}});
  Expect({R"({"not":{"type":["string","number","object"]}})",
          {"null", "true", "[1]"},
          {"1", R"("x")", "{}"}});
  Expect({R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]}})",
          {R"({"a":1,"b":2})", R"({"b":1})", "{}"},
          {R"({"a":1})"}});
}

TEST(JsonSchemaTest, ArraysAreCounted) {
  Expect({R"({"type":"array","items":{"type":"integer"},"minItems":2,"maxItems":3})",
          {"[1,2]", "[1, 2, 3]", "[\n  1,\n  2\n]"},
          {"[]", "[1]", "[1,2,3,4]", "[1,2,]"}});
  Expect({R"({"type":"array","prefixItems":[{"const":1},{"type":"string"}],
      "items":{"type":"boolean"},"minItems":1})",
          {"[1]", R"([1,"x"])", R"([1,"x",true,false])"},
          {"[]", "[2]", R"([1,"x",1])"}});
  Expect({R"({"type":"array","items":{"enum":["a","b","c"]},"uniqueItems":true,"minItems":1,
      "maxItems":2})",
          {R"(["a"])", R"(["c", "a"])"},
          {"[]", R"(["a","a"])", R"(["a","b","c"])"}});
  Expect({R"({"type":"array","items":{"type":"integer"},"contains":{"minimum":10}})",
          {"[10]", "[1,2,30,4]"},
          {"[]", "[1,2]", R"(["x",30])"}});
}

TEST(JsonSchemaTest, StringsFollowPatternsAndFormats) {
  Expect({R"({"type":"string","pattern":"^[a-z]+\\d{2}$","maxLength":5})",
          {R"("ab12")", R"("abc12")"},
          {R"("abcd12")", R"("ab1")", R"("\u0061b12")"}});
  Expect({R"({"type":"string","pattern":"q\"","minLength":3})",
          {R"("aq\"")", R"("q\"\n")"},
          {R"("q\"")", R"("abc")"}});
  Expect({R"({"type":"string","format":"date"})",
          {R"("2024-02-29")", R"("1999-12-31")"},
          {R"("2023-02-29")", R"("1900-02-29")", R"("2024-13-01")", R"("2024-1-01")"}});
  Expect({R"({"type":"string","format":"date-time"})",
          {R"("2024-02-29T23:59:59Z")", R"("2024-01-01T00:00:00.25+02:00")"},
          {R"("2024-02-29 23:59:59Z")", R"("2024-02-29T24:00:00Z")", R"("2024-02-29T23:59:59")"}});
  Expect({R"({"type":"string","format":"uuid"})",
          {R"("123e4567-e89b-12d3-a456-426614174000")"},
          {R"("123e4567e89b12d3a456426614174000")"}});
  Expect({R"({"type":"string","format":"ipv4"})", {R"("127.0.0.1")"}, {R"("256.0.0.1")"}});
  Expect({R"({"type":"string","format":"ipv6"})",
          {R"("::1")", R"("fe80::1:2")", R"("1:2:3:4:5:6:7:8")", R"("::")"},
          {R"("1:2:3")", R"("1::2::3")", R"("1:2:3:4:5:6:7:8:9")"}});
  Expect({R"({"type":"string","format":"uri"})",
          {R"("https://a.example/p?q=1#f")", R"("mailto:a@b.c")", R"("urn:isbn:1")"},
          {R"("no uri")", R"("//a/b")", R"("http://a b")"}});
  Expect(
      {R"({"type":"string","format":"email"})", {R"("a.b+c@d.example")"}, {R"("a@")", R"("a")"}});
}

TEST(JsonSchemaTest, WhatIsNotEnforcedIsNamed) {
  EXPECT_THAT(ErrorOf(R"j({"properties":{"x":{"type":"string","pattern":"a(?=b)"}}})j"),
              AllOf(HasSubstr("schema.properties.x: the keyword \"pattern\" is not supported"),
                    HasSubstr("look-ahead at character 2")));
  EXPECT_THAT(ErrorOf(R"({"type":"array","items":{"type":"string"},"uniqueItems":true})"),
              HasSubstr("schema: the keyword \"uniqueItems\" is not supported"));
  EXPECT_THAT(ErrorOf(R"({"items":{"madeUp":1}})"),
              HasSubstr("schema.items: the keyword \"madeUp\" is not supported"));
  EXPECT_THAT(ErrorOf(R"({"type":"dict"})"), HasSubstr("schema: there is no type \"dict\""));
  const Compiled relaxed =
      Compile(Json::parse(R"({"type":"object","properties":{"x":{"type":"string",
          "pattern":"\\bfoo","maxLength":3},"y":{"madeUp":1}}})"),
              false);
  ASSERT_TRUE(relaxed.grammar.ok());
  EXPECT_THAT(relaxed.unchecked,
              ElementsAre("schema.properties.x: pattern", "schema.properties.y: madeUp"));
  EXPECT_TRUE(Matches(relaxed.grammar.value(), R"({"x":"abc"})"));
  EXPECT_FALSE(Matches(relaxed.grammar.value(), R"({"x":"abcd"})"));
}

TEST(JsonSchemaTest, WhatCannotBeIsAnErrorInEveryMode) {
  for (const bool strict : {false, true}) {
    for (const char* schema : {"false", R"({"type":"string","enum":[1]})",
                               R"({"type":"integer","minimum":3,"maximum":2})",
                               R"({"type":"string","pattern":"^a$","minLength":2})",
                               R"({"allOf":[{"type":"string"},{"type":"object"}]})",
                               R"({"type":"object","properties":{"a":false},"required":["a"]})",
                               R"({"type":"array","items":false,"minItems":1})",
                               R"({"type":"string","minLength":3,"maxLength":2})"}) {
      EXPECT_THAT(ErrorOf(schema, strict),
                  ::testing::AnyOf(HasSubstr("no value is valid"), HasSubstr("nothing matches")))
          << schema;
    }
    EXPECT_THAT(ErrorOf(R"({"type":"object","properties":{"a":3}})", strict),
                HasSubstr("must be made of schemas"));
    EXPECT_THAT(ErrorOf(R"({"minLength":"x"})", strict), HasSubstr("must be a whole number"));
    EXPECT_THAT(ErrorOf(R"({"required":"x"})", strict), HasSubstr("array of strings"));
    EXPECT_THAT(ErrorOf("3", strict), HasSubstr("a schema must be"));
  }
}

TEST(JsonSchemaTest, AnnotationsAndOldSpellingsAreUnderstood) {
  Expect({R"({"title":"t","description":"d","default":1,"examples":[2],"x-order":3,
      "type":"integer","minimum":1,"exclusiveMinimum":true,"deprecated":true})",
          {"2"},
          {"1"}});
  Expect({R"({"type":"string","nullable":true})", {"null", R"("x")"}, {"1"}});
  Expect({R"({"type":"array","items":[{"type":"integer"}],"additionalItems":{"type":"string"}})",
          {"[1]", R"([1,"x"])"},
          {"[1,2]"}});
  Expect({R"({"$ref":"#/definitions/a","definitions":{"a":{"type":"null"}}})", {"null"}, {"1"}});
}

TEST(JsonSchemaTest, HostileSchemasEndInTime) {
  const auto start = std::chrono::steady_clock::now();
  std::string ladder = R"({"type":"integer"})";
  for (int i = 0; i < 30; ++i) ladder = "{\"anyOf\":[" + ladder + ",{\"type\":\"string\"}]}";
  EXPECT_EQ(ErrorOf(ladder.c_str()), "");
  std::string product = "{\"allOf\":[";
  for (int i = 0; i < 40; ++i) {
    product += std::string(i > 0 ? "," : "") + "{\"anyOf\":[{\"minLength\":" + std::to_string(i) +
               "},{\"maxLength\":" + std::to_string(100 + i) + "}]}";
  }
  EXPECT_THAT(ErrorOf((product + "]}").c_str()), HasSubstr("too many combinations"));
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 600; ++i) {
    wide += std::string(i > 0 ? "," : "") + "\"p" + std::to_string(i) + R"(":{"type":"string"})";
  }
  EXPECT_EQ(ErrorOf((wide + "}}").c_str()), "");
  EXPECT_THAT(ErrorOf(R"({"type":"string","pattern":"(a{0,1000}){0,1000}"})"),
              HasSubstr("repetition this large"));
  EXPECT_THAT(ErrorOf(R"({"type":"string","pattern":"(a|b)*a(a|b){300}","maxLength":400})"),
              HasSubstr("complex"));
  Json deep = true;
  for (int i = 0; i < 1000; ++i) {
    Json outer = Json::object();
    outer["items"] = std::move(deep);
    deep = std::move(outer);
  }
  EXPECT_THAT(Compile(deep, true).grammar.status().message(), HasSubstr("nested deeper"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
}

TEST(JsonTextTest, FreeValuesAreBounded) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule start = builder.DeclareRule("start");
  builder.DefineRule(start, AddJsonValue(builder));
  const Result<Grammar> built = builder.Build(start);
  ASSERT_TRUE(built.ok()) << built.status().message();
  const Grammar& grammar = built.value();
  for (const char* text : {"null", "-1.5e3", R"("\u0041\ud83d\ude42\/")", "[]", "{ }",
                           R"({"a":[1, {"b":null}],"c":"d"})", "[[[[[[[[1]]]]]]]]"}) {
    EXPECT_TRUE(Matches(grammar, text)) << text;
  }
  for (const char* text : {"", " 1", "nul", R"("\ud83d")", R"("\ude42")", R"("\x")", "\"\n\"",
                           "[1,]", "{1:2}", "[[[[[[[[[1]]]]]]]]]", "\"\xFF\"", "\"\xED\xA0\x80\"",
                           "[  1]", "[\n                     1]"}) {
    EXPECT_FALSE(Matches(grammar, text)) << text;
  }
}

TEST(JsonTextTest, ObjectsAndChoices) {
  GrammarBuilder builder;
  const GrammarBuilder::Rule object = builder.DeclareRule("object");
  builder.DefineRule(object, AddJsonObject(builder));
  const Grammar any = builder.Build(object).value();
  EXPECT_TRUE(Matches(any, R"({"a":{}})"));
  EXPECT_FALSE(Matches(any, "[]"));
  const std::vector<std::string> texts = {"yes", "yes!", "no"};
  const GrammarBuilder::Rule choice = builder.DeclareRule("choice");
  builder.DefineRule(choice, AddChoice(builder, texts));
  const Grammar one = builder.Build(choice).value();
  for (const std::string& text : texts) EXPECT_TRUE(Matches(one, text));
  EXPECT_FALSE(Matches(one, "ye"));
}

}  // namespace
}  // namespace baltoro
