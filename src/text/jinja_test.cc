// The interpreter by itself; tests/template_vs_jinja2.py holds it to Jinja2 on thousands of cases.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "text/jinja_interpreter.h"
#include "text/jinja_parser.h"

namespace baltoro::jinja {
namespace {

using ::testing::HasSubstr;

Result<std::string> Render(std::string_view source, const Json& variables = Json::object()) {
  BT_ASSIGN_OR_RETURN(const Template parsed, ParseTemplate(source));
  Interpreter interpreter(parsed);
  for (const auto& [name, value] : variables.items()) {
    BT_RETURN_IF_ERROR(interpreter.Define(name, value));
  }
  BT_ASSIGN_OR_RETURN(const Text text, interpreter.Run());
  return text.bytes();
}

std::string Shown(std::string_view source, const Json& variables = Json::object()) {
  const auto text = Render(source, variables);
  return text.ok() ? text.value() : "error: " + text.status().message();
}

std::string Why(std::string_view source) {
  return Render(source).status().message();
}

TEST(JinjaTest, WhiteSpaceIsControlledAsHuggingFaceSetsIt) {
  EXPECT_EQ(Shown("a\n  {% if true %}\nb\n  {% endif %}\nc\n"), "a\nb\nc");
  EXPECT_EQ(Shown("a \n {%- if true -%} \n b {%- endif %} c"), "ab c");
  EXPECT_EQ(Shown("  {%+ if true %}x{% endif +%}\ny"), "  x\ny");
  EXPECT_EQ(Shown("x {{- 1 -}} \n y\n\n"), "x1y\n");
  EXPECT_EQ(Shown("a\n  {# note #}\nb {#- x -#} c"), "a\nbc");
  EXPECT_EQ(Shown("{% raw %}{{ x }}{% endraw %}!"), "{{ x }}!");
}

TEST(JinjaTest, ScopesHoldWhatTheySet) {
  EXPECT_EQ(Shown("{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}"
                  "{{ x }}"),
            "231");
  EXPECT_EQ(Shown("{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}"
                  "{% endfor %}{{ n.x }}"),
            "4");
  EXPECT_EQ(Shown("{% macro m(a, b=2) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{% set c = 3 %}"
                  "{{ m(1) }}{{ m(b=5, a=4) }}"),
            "123453");
  EXPECT_EQ(Shown("{% if true %}{% set y = 1 %}{% endif %}{{ y }}"), "1");
}

TEST(JinjaTest, LoopsCountBreakAndContinue) {
  EXPECT_EQ(Shown("{% for i in range(5) if i != 1 %}{% if i == 3 %}{% break %}{% endif %}"
                  "{{ loop.index }}/{{ loop.length }}:{{ i }} {% else %}none{% endfor %}"),
            "1/4:0 2/4:2 ");
  EXPECT_EQ(Shown("{% for i in [] %}{% else %}none{% endfor %}"), "none");
  EXPECT_EQ(Shown("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.last }}"
                  "{% if loop.first %}{% continue %}{% endif %};{% endfor %}"),
            "a1Falseb2True;");
}

TEST(JinjaTest, ValuesPrintAsPythonPrintsThem) {
  EXPECT_EQ(Shown("{{ [1, 2.0, 1e20, 1e-7, none, true, 'a\\'b', ('x',), {}] }}"),
            "[1, 2.0, 1e+20, 1e-07, None, True, \"a'b\", ('x',), {}]");
  EXPECT_EQ(Shown("{{ 7 // -2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 1 + 2.5 }}"),
            "-4 2 3.5 1024 3.5");
  EXPECT_EQ(Shown("{{ missing }}{{ missing is defined }}{{ {}.x }}"), "False");
}

TEST(JinjaTest, DictsAreEqualInAnyOrder) {
  EXPECT_EQ(Shown("{{ {'a': 1, 'b': [2]} == {'b': [2], 'a': 1.0} }}"), "True");
  EXPECT_EQ(Shown("{{ {'a': 1, 'b': 2} == {'a': 2, 'b': 1} }}"), "False");
  EXPECT_EQ(Shown("{{ {'a': 1, 'b': 2} == {'a': 1, 'c': 2} }}{{ {'a': 1} == {} }}"), "FalseFalse");
  EXPECT_EQ(Shown("{{ {'a': 1, 2: 3} == {2.0: 3, 'a': 1} }}{{ {1: 1} == {'1': 1} }}"), "TrueFalse");
  EXPECT_EQ(Shown("{{ {1: 2, 3: 4} == {1: 2, 5: 4} }}"), "False");
}

TEST(JinjaTest, TextIsCountedInCharacters) {
  const Json variables = {{"s", "añ日😀z"}};
  EXPECT_EQ(Shown("{{ s|length }} {{ s[1] }}{{ s[-2] }} {{ s[1:3] }} {{ s[::-1] }}", variables),
            "5 ñ😀 ñ日 z😀日ña");
  EXPECT_EQ(Shown("{{ 'straße'|upper }} {{ 'ΑΣ'|lower }} {{ 'ǆ x'|title }}"), "STRASSE ας Ǆ X");
}

TEST(JinjaTest, TojsonWritesAsJsonDumps) {
  const Json variables = {{"v", {{"z", {1, 2.5, nullptr}}, {"a", "é\"\n\x01</b>"}}}};
  EXPECT_EQ(Shown("{{ v|tojson }}", variables), R"({"z": [1, 2.5, null], "a": "é\"\n\u0001</b>"})");
  EXPECT_EQ(Shown("{{ v|tojson(separators=(',', ':'), ensure_ascii=true) }}", variables),
            R"({"z":[1,2.5,null],"a":"\u00e9\"\n\u0001</b>"})");
  EXPECT_EQ(Shown("{{ {'a': [1], 'b': []}|tojson(indent=2) }}"),
            "{\n  \"a\": [\n    1\n  ],\n  \"b\": []\n}");
}

TEST(JinjaTest, ErrorsNameTheLine) {
  EXPECT_THAT(Why("\n{{ x.y }}"), HasSubstr("line 2: 'x' is undefined"));
  EXPECT_THAT(Why("a\n\n{% if %}"), HasSubstr("line 3"));
  EXPECT_THAT(Why("{{ x|nofilter }}"), HasSubstr("no filter 'nofilter'"));
  EXPECT_THAT(Why("{% include 'x' %}"), HasSubstr("'include' is not supported"));
  EXPECT_THAT(Why("{{ 1 + 'a' }}"), HasSubstr("cannot add 'int' and 'str'"));
  EXPECT_THAT(Why("{{ (1).__class__.x }}"), HasSubstr("'__class__' is undefined"));
  EXPECT_THAT(Why("{{ true[1:] }}"), HasSubstr("a 'bool' cannot be sliced"));
  EXPECT_THAT(Why("{% if true %}{{ 1|nofilter }}{% endif %}"), HasSubstr("'nofilter'"));
  EXPECT_EQ(Shown("{% if false %}{{ 1|nofilter }}{% endif %}"), "");
  EXPECT_THAT(Why("{% for x in y %}"), HasSubstr("expected 'endfor'"));
}

TEST(JinjaTest, RunawayTemplatesAreStopped) {
  EXPECT_THAT(Why("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
              HasSubstr("steps"));
  EXPECT_THAT(Why("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"), HasSubstr("too deeply"));
  EXPECT_THAT(Why("{{ 'x' * 1000000000000 }}"), HasSubstr("steps"));
  EXPECT_THAT(Why("{% set s = 'xxxxxxxxxxxxxxxx' * 65536 %}{{ s * 65 }}"), HasSubstr("bytes"));
  EXPECT_THAT(Why("{% set l = [1] %}{% set x = l.append(l) %}{{ l }}"), HasSubstr("too deeply"));
  EXPECT_THAT(Why("{% set n = namespace(l=[1]) %}{% for i in range(60) %}"
                  "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l == n.l|list }}"),
              HasSubstr("too large"));
  EXPECT_THAT(Why("{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}"),
              HasSubstr("too deeply"));
  std::string sum = "{{ 1";
  for (int i = 0; i < 1000; ++i) sum += " + 1";
  EXPECT_THAT(Why(sum + " }}"), HasSubstr("too deeply"));
}

TEST(JinjaTest, TextRemembersWhatIsTrusted) {
  Text text("ab", true);
  text.Append("cd", false);
  text.Append("", true);
  text.Append("ef", false);
  text.Append("g", true);
  std::string runs;
  text.ForEachRun(1, 7, [&](std::string_view bytes, bool trusted) {
    runs += std::string(bytes) + (trusted ? "+" : "-");
  });
  EXPECT_EQ(runs, "b+cdef-g+");
  EXPECT_TRUE(text.TrustedAt(1));
  EXPECT_FALSE(text.TrustedAt(2));
  EXPECT_TRUE(text.Substring(6, 7).TrustedAt(0));
}

}  // namespace
}  // namespace baltoro::jinja
