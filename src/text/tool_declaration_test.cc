#include "text/tool_declaration.h"

#include <gtest/gtest.h>

namespace baltoro {
namespace {

// The lines between the namespace's braces for one function.
std::string Declared(std::string_view function) {
  const auto parsed = ParseJson(function);
  EXPECT_TRUE(parsed.ok()) << parsed.status().message();
  const Json tools = Json::array({{{"type", "function"}, {"function", parsed.value()}}});
  const auto text = ToolsTypescript(SortKeys(tools));
  if (!text.ok()) return "error: " + text.status().message();
  constexpr std::string_view kHead = "# Tools\n\n## functions\nnamespace functions {\n";
  constexpr std::string_view kTail = "\n}\n";
  EXPECT_TRUE(text.value().starts_with(kHead) && text.value().ends_with(kTail)) << text.value();
  return text.value().substr(kHead.size(), text.value().size() - kHead.size() - kTail.size());
}

std::string Field(const std::string& schema) {
  return Declared(R"({"name": "f", "parameters": {"type": "object", "properties": {"x": )" +
                  schema + "}}}");
}

TEST(ToolDeclarationTest, PutsRequiredFieldsFirstAndCommentsAbove) {
  EXPECT_EQ(Declared(R"({"name": "get_weather", "description": "Get weather", "parameters":
      {"type": "object", "required": ["city"], "properties": {
        "unit": {"type": "string", "enum": ["c", "f"], "default": "c"},
        "city": {"type": "string", "description": "City name"}}}})"),
            "// Get weather\ntype get_weather = (_: {\n  // City name\n  city: string,\n"
            "  // Default: \"c\"\n  unit?: \"c\" | \"f\"\n}) => any;");
}

TEST(ToolDeclarationTest, PrintsConstraintsAndDefaultsAsPythonDoes) {
  EXPECT_EQ(Field(R"({"type": "integer", "minimum": 1, "maximum": 9.0, "default": true})"),
            "type f = (_: {\n  // maximum: 9.0, minimum: 1\n  // Default: True\n  x?: number\n"
            "}) => any;");
  EXPECT_EQ(Field(R"({"type": "string", "pattern": "^a\"$", "default": {"b": [1, null, "é"]}})"),
            "type f = (_: {\n  // pattern: ^a\"$\n  // Default: {\"b\": [1, null, \"é\"]}\n"
            "  x?: string\n}) => any;");
}

TEST(ToolDeclarationTest, ArraysOfCommentedItemsTakeLines) {
  EXPECT_EQ(Field(R"({"type": "array", "minItems": 1, "items": {"type": "string",
      "description": "a\n\nb"}})"),
            "type f = (_: {\n  // minItems: 1\n  x?: Array<\n    // a\n\n    // b\n    string\n"
            "  >\n}) => any;");
  EXPECT_EQ(Field(R"({"type": "array"})"), "type f = (_: {\n  x?: Array<any>\n}) => any;");
}

TEST(ToolDeclarationTest, DefinitionsBecomeInterfaces) {
  EXPECT_EQ(Declared(R"({"name": "f", "parameters": {"properties": {"a": {"$ref": "#/$defs/N"},
          "z": {"$ref": "#"}}, "required": ["z"], "$defs": {"N": {"type": "object",
          "description": "tree", "additionalProperties": false}}}})"),
            "interface parameters {\n  a?: N,\n  z: parameters\n}\n// tree\n"
            "interface N {\n  [k: string]: never\n}\ntype f = (_: parameters) => any;");
}

TEST(ToolDeclarationTest, RefusesWhatHasNoForm) {
  EXPECT_EQ(Field(R"({"oneOf": []})"), "error: a schema without type");
  EXPECT_EQ(Field(R"({"$ref": "http://x"})"), "error: $ref to what is not in $defs: http://x");
  EXPECT_EQ(Field(R"({"type": ["string", "date"]})"), "error: an unknown type in a list of types");
  EXPECT_EQ(Field(R"({"type": "string", "enum": [1]})"),
            "error: an enum value is not of the type string");
}

TEST(ToolDeclarationTest, SkipsWhatIsNoFunction) {
  const Json tools = {{{"type", "_plugin"}}, {{"type", "function"}, {"function", nullptr}}};

  const auto text = ToolsTypescript(tools);

  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text.value(), "");
}

TEST(ToolDeclarationTest, KeysAreSortedAtAnyDepth) {
  EXPECT_EQ(
      SortKeys(ParseJson(R"([{"b": {"z": 1, "é": 2, "a": [{"d": 1, "c": 2}]}, "a": 0}])").value())
          .dump(),
      R"([{"a":0,"b":{"a":[{"c":2,"d":1}],"z":1,"é":2}}])");
}

}  // namespace
}  // namespace baltoro
