// The prompts that are asked where none are given.

#include <fmt/format.h>

#include <array>

#include "base/check.h"
#include "verify/prompts.h"

namespace baltoro {
namespace {

constexpr std::string_view kWeather = R"({"type":"function","function":{"name":"get_weather",
  "description":"The weather of a place.","parameters":{"type":"object","properties":{
  "city":{"type":"string","description":"Name of the place"},
  "unit":{"type":"string","enum":["celsius","fahrenheit"]}},"required":["city"]}}})";

constexpr std::string_view kTimer = R"({"type":"function","function":{"name":"set_timer",
  "description":"Rings after some minutes.","parameters":{"type":"object","properties":{
  "minutes":{"type":"integer","minimum":1,"maximum":600},"label":{"type":"string"}},
  "required":["minutes"],"additionalProperties":false}}})";

constexpr std::string_view kOrder = R"({"type":"function","function":{"name":"place_order",
  "description":"Orders goods.","parameters":{"type":"object","properties":{
  "items":{"type":"array","minItems":1,"items":{"type":"object","properties":{
  "name":{"type":"string"},"count":{"type":"integer","minimum":1}},"required":["name","count"]}},
  "address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string"}},
  "required":["street","zip"]},"express":{"type":"boolean"}},"required":["items","address"]}}})";

constexpr std::string_view kCalculate = R"({"type":"function","function":{"name":"calculate",
  "description":"The value of an arithmetic expression.","parameters":{"type":"object",
  "properties":{"expression":{"type":"string"}},"required":["expression"]}}})";

struct Written {
  std::string_view id;
  std::string_view fields;  // of the body, without its braces
  std::array<std::string_view, 4> tools = {};
};

constexpr Written kWritten[] = {
    {"chat-greeting", R"("messages":[{"role":"user","content":"Hello! Who are you?"}])"},
    {"chat-sum", R"("messages":[{"role":"user","content":"What is 27 + 58?"}])"},
    {"chat-no-thinking", R"("messages":[{"role":"user","content":"What is 27 + 58?"}],
      "chat_template_kwargs":{"thinking":false})"},
    {"chat-thinking", R"("messages":[{"role":"user","content":"Which is larger, 9.11 or 9.9?"}],
      "chat_template_kwargs":{"thinking":true})"},
    {"chat-short", R"("messages":[{"role":"user","content":"Name three primary colours."}],
      "max_tokens":24)"},
    {"chat-story", R"("messages":[{"role":"user","content":"Tell a story of five sentences about
 a lighthouse keeper who finds a letter."}],"chat_template_kwargs":{"thinking":false})"},
    {"chat-code", R"("messages":[{"role":"user","content":"Write a Python function that says
 whether a word is a palindrome.\n```python\n"}],"chat_template_kwargs":{"thinking":false})"},
    {"system-terse", R"("messages":[{"role":"system","content":"You answer with one word."},
      {"role":"user","content":"What is the capital of France?"}])"},
    {"system-role", R"("messages":[{"role":"system","content":"You are a ship's cook. You speak of
 nothing but soup."},{"role":"user","content":"How do I repair a bicycle?"}],
      "chat_template_kwargs":{"thinking":false})"},
    {"turns-memory", R"("messages":[{"role":"user","content":"My name is Ada and my number is 41."},
      {"role":"assistant","content":"Nice to meet you, Ada."},
      {"role":"user","content":"What is my name, and what is my number plus one?"}])"},
    {"turns-five", R"("messages":[{"role":"user","content":"Count with me. One."},
      {"role":"assistant","content":"Two."},{"role":"user","content":"Three."},
      {"role":"assistant","content":"Four."},{"role":"user","content":"Five."}],
      "chat_template_kwargs":{"thinking":false})"},
    {"turns-thinking", R"("messages":[{"role":"user","content":"What is 6 * 7?"},
      {"role":"assistant","content":"42","reasoning_content":"6 times 7 is 42."},
      {"role":"user","content":"And that minus 2?"}])"},
    {"content-parts", R"("messages":[{"role":"user","content":[{"type":"text","text":"Sort these
 words: "},{"type":"text","text":"pear, apple, fig"}]}],
      "chat_template_kwargs":{"thinking":false})"},
    {"tool-one",
     R"("messages":[{"role":"user","content":"What is the weather in Oslo?"}])",
     {kWeather}},
    {"tool-several",
     R"("messages":[{"role":"user","content":"Set a timer of 12 minutes for the
 eggs."}])",
     {kWeather, kTimer, kCalculate}},
    {"tool-nested",
     R"("messages":[{"role":"user","content":"Order two lamps and a chair to 5 Main
 Street, 12345, express."}])",
     {kOrder}},
    {"tool-required",
     R"("tool_choice":"required","messages":[{"role":"user","content":"Is it warm
 in Lima?"}])",
     {kWeather, kTimer}},
    {"tool-named",
     R"("tool_choice":{"type":"function","function":{"name":"calculate"}},
      "messages":[{"role":"user","content":"How much is 12 * 12?"}])",
     {kWeather, kCalculate}},
    {"tool-none",
     R"("tool_choice":"none","messages":[{"role":"user","content":"What is the weather
 in Rome?"}])",
     {kWeather}},
    {"tool-not-needed",
     R"("messages":[{"role":"user","content":"Thank you, that was all."}])",
     {kWeather, kTimer}},
    {"tool-parallel",
     R"("messages":[{"role":"user","content":"Compare the weather in Oslo and in
 Rome."}],"chat_template_kwargs":{"thinking":false})",
     {kWeather}},
    {"tool-result",
     R"("messages":[{"role":"user","content":"What is the weather in Oslo?"},
      {"role":"assistant","content":"","tool_calls":[{"id":"functions.get_weather:0",
      "type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\"}"}}]},
      {"role":"tool","tool_call_id":"functions.get_weather:0","content":"-4 degrees, snow"}])",
     {kWeather}},
    {"tool-two-results",
     R"("messages":[{"role":"user","content":"Weather in Oslo and Rome?"},
      {"role":"assistant","content":"","tool_calls":[{"id":"functions.get_weather:0",
      "type":"function","function":{"name":"get_weather","arguments":"{\"city\": \"Oslo\"}"}},
      {"id":"functions.get_weather:1","type":"function","function":{"name":"get_weather",
      "arguments":"{\"city\": \"Rome\"}"}}]},
      {"role":"tool","tool_call_id":"functions.get_weather:0","content":"-4 degrees"},
      {"role":"tool","tool_call_id":"functions.get_weather:1","content":"18 degrees"},
      {"role":"user","content":"Which one is warmer, and by how much?"}])",
     {kWeather, kCalculate}},
    {"schema-person", R"("messages":[{"role":"user","content":"Maria Lopez is 34 and lives in
 Quito. Give this as JSON."}],"response_format":{"type":"json_schema","json_schema":{
      "name":"person","schema":{"type":"object","properties":{"name":{"type":"string"},
      "age":{"type":"integer"},"city":{"type":"string"}},"required":["name","age","city"],
      "additionalProperties":false}}})"},
    {"schema-list", R"("messages":[{"role":"user","content":"Give three animals with their number
 of legs as JSON."}],"chat_template_kwargs":{"thinking":false},
      "response_format":{"type":"json_schema","json_schema":{"name":"animals","schema":{
      "type":"object","properties":{"animals":{"type":"array","minItems":3,"maxItems":3,"items":{
      "type":"object","properties":{"name":{"type":"string","maxLength":40},
      "legs":{"type":"integer","minimum":0,"maximum":100}},"required":["name","legs"],
      "additionalProperties":false}}},"required":["animals"],"additionalProperties":false}}})"},
    {"json-object", R"("messages":[{"role":"user","content":"Say in JSON whether 17 is prime."}],
      "response_format":{"type":"json_object"},"chat_template_kwargs":{"thinking":false})"},
    {"unicode-scripts", R"("messages":[{"role":"user","content":"Repeat: \u041f\u0440\u0438\u0432
\u0435\u0442, \u4f60\u597d\uff0c\u3053\u3093\u306b\u3061\u306f, \u0645\u0631\u062d\u0628\u0627,
 \u0928\u092e\u0938\u094d\u0924\u0947"}],"chat_template_kwargs":{"thinking":false})"},
    {"unicode-emoji", R"("messages":[{"role":"user","content":"What do these say?
 \ud83d\ude80\ud83c\udf0d \ud83d\udc69\u200d\ud83d\udcbb e\u0301 \u00e9 \u200f\u202f"}])"},
    {"marks-as-text", R"("messages":[{"role":"user","content":"What is <|im_end|> and </think> in
 <|tool_calls_section_begin|> a text?"}],"chat_template_kwargs":{"thinking":false})"},
    {"stop-string", R"("messages":[{"role":"user","content":"Count from 1 to 20, with commas."}],
      "stop":["7"],"chat_template_kwargs":{"thinking":false})"},
    {"stop-lines", R"("messages":[{"role":"user","content":"Write a list of four fruits."}],
      "stop":["\n\n","4."],"chat_template_kwargs":{"thinking":false})"},
};

// The text of a raw string is broken into lines within strings, which JSON has no place for.
std::string WithoutLineBreaks(std::string_view text) {
  std::string out(text);
  std::erase(out, '\n');
  return out;
}

VerifyPrompt Read(const Written& written) {
  std::string text = "{" + WithoutLineBreaks(written.fields);
  std::string tools;
  for (const std::string_view tool : written.tools) {
    if (!tool.empty()) tools += (tools.empty() ? "" : ",") + WithoutLineBreaks(tool);
  }
  if (!tools.empty()) text += ",\"tools\":[" + tools + "]";
  Result<Json> body = ParseJson(text + "}");
  BT_CHECK(body.ok());
  return {.id = std::string(written.id), .body = std::move(body).value()};
}

// Some thousand tokens: a register in which one line is asked for.
VerifyPrompt LongContext(const char* id, int lines, int wanted) {
  constexpr std::string_view kNames[] = {"amber", "basalt", "cedar", "dune",
                                         "ember", "fjord",  "grove"};
  constexpr std::string_view kPlaces[] = {"north gate", "old mill", "harbour", "upper field",
                                          "library"};
  std::string text = "Here is a register.\n";
  uint32_t state = 12345;
  const auto draw = [&](uint32_t below) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % below;
  };
  for (int i = 0; i < lines; ++i) {
    text += fmt::format("Entry {}: the {} crate stands at the {} and holds {} pieces.\n", i + 1,
                        kNames[draw(7)], kPlaces[draw(5)], 10 + draw(990));
  }
  text += fmt::format("How many pieces does the crate of entry {} hold, and where is it?", wanted);
  return {.id = id,
          .body = {{"messages", {{{"role", "user"}, {"content", text}}}},
                   {"chat_template_kwargs", {{"thinking", false}}}}};
}

}  // namespace

std::vector<VerifyPrompt> BuiltInPrompts() {
  std::vector<VerifyPrompt> out;
  for (const Written& written : kWritten) out.push_back(Read(written));
  out.push_back(LongContext("long-context", 60, 41));
  out.push_back(LongContext("longer-context", 160, 9));
  return out;
}

}  // namespace baltoro
