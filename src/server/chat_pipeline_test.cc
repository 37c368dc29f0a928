// What a conversation becomes on its way to the engine: prompt, constraint, parser.

#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "grammar/constraint_factory.h"
#include "grammar/output_constraint.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

const Json kWeather = {
    {"type", "function"},
    {"function",
     {{"name", "get_weather"},
      {"parameters",
       {{"type", "object"},
        {"properties", {{"city", {{"type", "string"}, {"enum", {"Oslo", "Rome"}}}}}},
        {"required", {"city"}},
        {"additionalProperties", false}}}}}};
const Json kInstant = {{"thinking", false}};

Json Call(const char* id, const char* name) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", "{}"}}}};
}

class ChatPipelineTest : public test::ServerFixture {
 protected:
  void SetUp() override { Restart("</think>ok"); }

  // A server with a model that says `text`.
  void Restart(const std::string& text, ServerConfig config = DefaultConfig()) {
    if (server_ != nullptr) server_->SetEngine(nullptr);
    engine_.reset();
    server_.reset();
    Start(Says(text), std::move(config));
    ASSERT_FALSE(HasFatalFailure());
    factory_ = MakeConstraintFactory(
        TokenTrie::Make(*tokenizer_, static_cast<int32_t>(test::kTestVocabulary)));
  }

  const Request& Last() {
    submitted_ = engine_->submitted();
    EXPECT_FALSE(submitted_.empty());
    return submitted_.back();
  }
  std::string Prompt() { return tokenizer_->Decode(Last().prompt, false); }
  OutputConstraint Constraint() {
    auto parsed = OutputConstraint::Parse(Last().constraint.str());
    EXPECT_TRUE(parsed.ok()) << parsed.status().message();
    return parsed.ok() ? std::move(parsed).value() : OutputConstraint();
  }

  // Whether the engine would let the model write this and end.
  bool MayWrite(const std::string& text) {
    auto made = factory_->Make(Last());
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return false;
    for (const TokenId id : Ids(text + "<|im_end|>")) {
      std::vector<uint32_t> mask(static_cast<size_t>(test::kTestVocabulary + 31) / 32, ~0u);
      made.value()->FillMask({}, mask);
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) return false;
      if (!made.value()->Accept(id)) return false;
    }
    return true;
  }
  static std::string Section(const std::string& calls) {
    return "<|tool_calls_section_begin|>" + calls + "<|tool_calls_section_end|>";
  }
  static std::string Written(const std::string& id, const std::string& arguments) {
    return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments +
           "<|tool_call_end|>";
  }

  std::shared_ptr<ConstraintFactory> factory_;
  std::vector<Request> submitted_;
};

TEST_F(ChatPipelineTest, CallsOfTheHistoryAreNumberedAndNewOnesGoOn) {
  const Json messages = {
      {{"role", "user"}, {"content", "a"}},
      {{"role", "assistant"},
       {"content", nullptr},
       {"tool_calls", {Call("call_x", "get_weather"), Call("call_y", "get_time")}}},
      {{"role", "tool"}, {"tool_call_id", "call_y"}, {"content", "noon"}},
      {{"role", "tool"}, {"tool_call_id", "call_x"}, {"content", "rain"}}};
  ASSERT_EQ(Chat({{"messages", messages}, {"tools", {kWeather}}}).status, 200);
  EXPECT_NE(Prompt().find("<|tool_call_begin|>functions.get_weather:0<|"), std::string::npos);
  EXPECT_NE(Prompt().find("## Return of functions.get_time:1\nnoon"), std::string::npos);
  EXPECT_NE(Prompt().find("## Return of functions.get_weather:0\nrain"), std::string::npos);
  EXPECT_EQ(Prompt().find("call_x"), std::string::npos);
  EXPECT_TRUE(
      MayWrite("hm</think>" + Section(Written("functions.get_weather:2", "{\"city\": \"Oslo\"}"))));

  ServerConfig verbatim = DefaultConfig();
  verbatim.normalise_tool_call_ids = false;
  Restart("</think>ok", std::move(verbatim));
  ASSERT_EQ(Chat({{"messages", messages}, {"tools", {kWeather}}}).status, 200);
  EXPECT_NE(Prompt().find("## Return of call_y\nnoon"), std::string::npos);
  // Nobody numbers the calls afterwards, so the grammar does.
  EXPECT_TRUE(
      MayWrite("</think>" + Section(Written("functions.get_weather:2", "{\"city\": \"Oslo\"}"))));
  EXPECT_FALSE(
      MayWrite("</think>" + Section(Written("functions.get_weather:0", "{\"city\": \"Oslo\"}"))));
}

TEST_F(ChatPipelineTest, EveryTurnOfAConversationHasTheSameGrammarAndItsOwnIds) {
  Restart("</think>" + Section(Written("functions.get_weather:0", "{\"city\": \"Oslo\"}")));
  Json messages = Json::array({{{"role", "user"}, {"content", "a"}}});
  std::set<std::string> constraints;
  for (int turn = 0; turn < 3; ++turn) {
    const Json body = Chat({{"messages", messages}, {"tools", {kWeather}}}).json();
    const Json& message = body["choices"][0]["message"];
    EXPECT_EQ(message["tool_calls"][0]["id"], "functions.get_weather:" + std::to_string(turn));
    constraints.insert(Last().constraint.str());
    messages.push_back(message);
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "rain"}});
  }
  EXPECT_EQ(constraints.size(), 1u);
}

TEST_F(ChatPipelineTest, AResultWithoutACallIsRefused) {
  const test::Answer answer = Chat({{"messages", {{{"role", "tool"}, {"content", "x"}}}}});
  EXPECT_EQ(answer.status, 400);
  EXPECT_EQ(answer.error()["param"], "messages[0].tool_call_id");
}

TEST_F(ChatPipelineTest, DeclaredToolsAreHeldToTheirSchemas) {
  ASSERT_EQ(Chat({{"tools", {kWeather}}}).status, 200);
  const std::string good = Written("functions.get_weather:0", "{\"city\": \"Oslo\"}");
  EXPECT_TRUE(MayWrite("anything</think>free text"));
  EXPECT_TRUE(MayWrite("anything</think>free text" + Section(good)));
  EXPECT_TRUE(MayWrite("no end of thinking" + Section(good)));
  EXPECT_FALSE(MayWrite("thinking without an answer"));
  EXPECT_FALSE(MayWrite("</think>" + Section(Written("functions.get_weather:0", "{}"))));
  EXPECT_FALSE(MayWrite("</think>" + Section(Written("functions.other:0", "{}"))));
  EXPECT_TRUE(MayWrite("</think>" +
                       Section(good + Written("functions.get_weather:1", "{\"city\": \"Rome\"}"))));

  ASSERT_EQ(Chat({{"tools", {kWeather}}, {"parallel_tool_calls", false}}).status, 200);
  EXPECT_FALSE(MayWrite(
      "</think>" + Section(good + Written("functions.get_weather:1", "{\"city\": \"Rome\"}"))));

  ASSERT_EQ(Chat({{"tools", {kWeather}}, {"constrain_tools", false}}).status, 200);
  EXPECT_EQ(Last().constraint, "");
  ServerConfig raw = DefaultConfig();
  raw.tool_parser = false;
  Restart("</think>ok", std::move(raw));
  ASSERT_EQ(Chat({{"tools", {kWeather}}}).status, 200);
  EXPECT_EQ(Last().constraint, "");
  EXPECT_EQ(Chat({{"tools", {kWeather}}, {"tool_choice", "required"}}).status, 400);
}

TEST_F(ChatPipelineTest, TheClientMayChooseForTheModel) {
  const std::string good = Section(Written("functions.get_weather:0", "{\"city\": \"Oslo\"}"));
  Json body = {{"tools", {kWeather}}, {"chat_template_kwargs", kInstant}};
  body["tool_choice"] = "none";
  ASSERT_EQ(Chat(body).status, 200);
  EXPECT_TRUE(MayWrite("text"));
  EXPECT_FALSE(MayWrite(good));
  // Nor any part of a call: with tools unread, marks would be shown as text.
  for (const char* mark :
       {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>", "<|tool_call_end|>"}) {
    EXPECT_FALSE(MayWrite(std::string("{\"city\": \"Oslo\"}") + mark)) << mark;
  }
  body["constrain_tools"] = false;
  ASSERT_EQ(Chat(body).status, 200);
  EXPECT_FALSE(MayWrite("x<|tool_call_end|>"));
  body.erase("constrain_tools");
  const test::Answer message =
      Post("/v1/messages", {{"max_tokens", 9},
                            {"messages", {{{"role", "user"}, {"content", "hi"}}}},
                            {"thinking", {{"type", "disabled"}}},
                            {"tools", {{{"name", "f"}, {"input_schema", {{"type", "object"}}}}}},
                            {"tool_choice", {{"type", "none"}}}});
  ASSERT_EQ(message.status, 200) << message.body;
  EXPECT_TRUE(MayWrite("text"));
  EXPECT_FALSE(MayWrite("{}<|tool_call_end|><|tool_calls_section_end|>"));

  body["tool_choice"] = "required";
  ASSERT_EQ(Chat(body).status, 200);
  EXPECT_TRUE(MayWrite(good));
  EXPECT_FALSE(MayWrite("text"));
  EXPECT_FALSE(MayWrite("text" + good));

  Json other = kWeather;
  other["function"]["name"] = "other";
  body["tools"].push_back(other);
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "other"}}}};
  ASSERT_EQ(Chat(body).status, 200);
  EXPECT_FALSE(MayWrite(good));
  EXPECT_TRUE(MayWrite(Section(Written("functions.other:0", "{\"city\": \"Oslo\"}"))));
}

// Bodies of the three APIs, each with tools get_weather and other, and no thinking.
struct ChoiceOfApi {
  const char* route;
  Json body;
};

std::vector<ChoiceOfApi> ChoicesOfAllApis(const Json& chat,
                                          const Json& responses,
                                          const Json& messages) {
  Json other = kWeather;
  other["function"]["name"] = "other";
  Json flat = Json::array(), anthropic = Json::array();
  for (const Json& tool : {kWeather, other}) {
    Json one = tool["function"];
    one["type"] = "function";
    flat.push_back(one);
    anthropic.push_back({{"name", one["name"]}, {"input_schema", one["parameters"]}});
  }
  const Json hello = {{{"role", "user"}, {"content", "hi"}}};
  std::vector<ChoiceOfApi> all = {
      {"/v1/chat/completions",
       {{"messages", hello}, {"tools", {kWeather, other}}, {"chat_template_kwargs", kInstant}}},
      {"/v1/responses", {{"input", "hi"}, {"tools", flat}, {"chat_template_kwargs", kInstant}}},
      {"/v1/messages",
       {{"messages", hello},
        {"tools", anthropic},
        {"max_tokens", 9},
        {"thinking", {{"type", "disabled"}}}}}};
  all[0].body.update(chat);
  all[1].body.update(responses);
  all[2].body.update(messages);
  return all;
}

TEST_F(ChatPipelineTest, ANamedFunctionIsCalledExactlyOnce) {
  const std::string one = Written("functions.other:0", "{\"city\": \"Oslo\"}");
  const std::string two = one + Written("functions.other:1", "{\"city\": \"Rome\"}");
  const Json named = {{"type", "function"}, {"function", {{"name", "other"}}}};
  const Json flat = {{"type", "function"}, {"name", "other"}};
  const Json tool = {{"type", "tool"}, {"name", "other"}};
  for (const bool stream : {false, true}) {
    for (const ChoiceOfApi& asked : ChoicesOfAllApis({{"tool_choice", named}, {"stream", stream}},
                                                     {{"tool_choice", flat}, {"stream", stream}},
                                                     {{"tool_choice", tool}, {"stream", stream}})) {
      ASSERT_EQ(Post(asked.route, asked.body).status, 200) << asked.route;
      EXPECT_TRUE(MayWrite(Section(one))) << asked.route;
      EXPECT_FALSE(MayWrite(Section(two))) << asked.route;
      EXPECT_FALSE(MayWrite("")) << asked.route;
      EXPECT_FALSE(MayWrite(Section(one) + Section(one))) << asked.route;
    }
  }
}

TEST_F(ChatPipelineTest, AllowedToolsAreCalledAndTheOthersStayInThePrompt) {
  const std::string allowed = Section(Written("functions.other:0", "{\"city\": \"Oslo\"}"));
  const std::string not_allowed =
      Section(Written("functions.get_weather:0", "{\"city\": \"Oslo\"}"));
  for (const bool required : {false, true}) {
    const char* const mode = required ? "required" : "auto";
    const Json chat = {
        {"type", "allowed_tools"},
        {"allowed_tools",
         {{"mode", mode}, {"tools", {{{"type", "function"}, {"function", {{"name", "other"}}}}}}}}};
    const Json responses = {{"type", "allowed_tools"},
                            {"mode", mode},
                            {"tools", {{{"type", "function"}, {"name", "other"}}}}};
    std::vector<ChoiceOfApi> both =
        ChoicesOfAllApis({{"tool_choice", chat}}, {{"tool_choice", responses}}, Json::object());
    both.pop_back();  // Anthropic has no such choice
    for (const ChoiceOfApi& asked : both) {
      ASSERT_EQ(Post(asked.route, asked.body).status, 200) << asked.body;
      EXPECT_TRUE(MayWrite(allowed)) << asked.body;
      EXPECT_FALSE(MayWrite(not_allowed)) << asked.body;
      EXPECT_EQ(MayWrite("hello"), !required) << asked.body;
      EXPECT_NE(Prompt().find("get_weather"), std::string::npos) << asked.body;
    }
  }
}

TEST_F(ChatPipelineTest, WithoutParallelCallsThereIsOneAtMost) {
  const std::string one = Written("functions.get_weather:0", "{\"city\": \"Oslo\"}");
  const std::string two = one + Written("functions.other:1", "{\"city\": \"Rome\"}");
  const Json listed = {{{"type", "function"}, {"name", "get_weather"}},
                       {{"type", "function"}, {"name", "other"}}};
  const auto allowed = [&](const char* mode) {
    return Json{{"type", "allowed_tools"}, {"mode", mode}, {"tools", listed}};
  };
  const Json off = {{"parallel_tool_calls", false}};
  const auto with = [](Json body, const Json& choice) {
    body["tool_choice"] = choice;
    return body;
  };
  const auto anthropic = [](const char* type) {
    return Json{{"tool_choice", {{"type", type}, {"disable_parallel_tool_use", true}}}};
  };
  std::vector<ChoiceOfApi> all =
      ChoicesOfAllApis(with(off, "auto"), with(off, allowed("auto")), anthropic("auto"));
  for (ChoiceOfApi& one_more :
       ChoicesOfAllApis(with(off, "required"), with(off, allowed("required")), anthropic("any"))) {
    all.push_back(std::move(one_more));
  }
  for (ChoiceOfApi& one_more : ChoicesOfAllApis(off, with(off, "required"), anthropic("any"))) {
    all.push_back(std::move(one_more));
  }
  for (const ChoiceOfApi& asked : all) {
    ASSERT_EQ(Post(asked.route, asked.body).status, 200) << asked.body;
    EXPECT_TRUE(MayWrite(Section(one))) << asked.body;
    EXPECT_FALSE(MayWrite(Section(two))) << asked.body;
  }
}

TEST_F(ChatPipelineTest, AnAnswerThatCannotBeAnObjectIsRefusedInEveryApi) {
  const Json list = {{"type", "array"}, {"items", {{"type", "integer"}}}};
  const Json hello = {{{"role", "user"}, {"content", "hi"}}};
  const Json format = {{"type", "json_schema"}, {"name", "x"}, {"schema", list}};
  const Json chat = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", list}}}};
  const std::vector<std::pair<std::string, Json>> asked = {
      {"/v1/chat/completions", {{"messages", hello}, {"response_format", chat}}},
      {"/v1/completions", {{"prompt", "hi"}, {"response_format", chat}}},
      {"/v1/responses", {{"input", "hi"}, {"text", {{"format", format}}}}},
      {"/v1/messages",
       {{"messages", hello}, {"max_tokens", 9}, {"output_config", {{"format", format}}}}},
      {"/v1/messages", {{"messages", hello}, {"max_tokens", 9}, {"output_format", format}}}};
  for (const auto& [route, body] : asked) {
    const test::Answer answer = Post(route, body);
    EXPECT_EQ(answer.status, 400) << route;
    EXPECT_THAT(answer.body,
                ::testing::HasSubstr("the answer must be an object, and the schema allows none"));
  }
  EXPECT_EQ(Chat({{"structured_outputs", {{"json", list}}}}).status, 200);
}

TEST_F(ChatPipelineTest, ASchemaThatIsAReferenceIsWhatItLeadsTo) {
  const auto status = [this](const char* schema) {
    return Chat({{"response_format",
                  {{"type", "json_schema"},
                   {"json_schema", {{"name", "x"}, {"schema", ParseJson(schema).value()}}}}}})
        .status;
  };
  EXPECT_EQ(status(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"array"}}})"), 400);
  EXPECT_EQ(status(R"({"$ref":"#/$defs/a","$defs":{"a":{"type":"object"}}})"), 200);
  EXPECT_EQ(
      status(R"({"$ref":"#/$defs/a~1b","$defs":{"a/b":{"$ref":"#/$defs/c"},"c":{"const":1}}})"),
      400);
  EXPECT_EQ(status(R"({"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}],
                       "$defs":{"a":{"type":"string"}}})"),
            400);
  EXPECT_EQ(status(R"({"anyOf":[{"$ref":"#/$defs/a"},{"type":"object"}],
                       "$defs":{"a":{"type":"string"}}})"),
            200);
  // "#" is here the part itself, whose x is an object.
  EXPECT_EQ(status(R"({"anyOf":[{"$id":"http://b/","$ref":"#/$defs/x",
                                 "$defs":{"x":{"type":"object"}}}],
                       "$defs":{"x":{"type":"array"}}})"),
            200);
  // Likewise further in.
  EXPECT_EQ(status(R"({"allOf":[{"$id":"http://b/","allOf":[{"$ref":"#/$defs/x"}],
                                 "$defs":{"x":{"type":"object"}}}],
                       "$defs":{"x":{"type":"string"}}})"),
            200);
}

TEST_F(ChatPipelineTest, ANamedChoiceEndsWithStop) {
  Restart("</think>" + Section(Written("functions.get_weather:0", "{}")));
  Json body = {{"tools", {kWeather}}};
  EXPECT_EQ(Chat(body).json()["choices"][0]["finish_reason"], "tool_calls");
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "get_weather"}}}};
  EXPECT_EQ(Chat(body).json()["choices"][0]["finish_reason"], "stop");
}

TEST_F(ChatPipelineTest, FormsHoldAfterThinking) {
  const Json schema = {{"type", "object"},
                       {"properties", {{"n", {{"type", "integer"}, {"maximum", 9}}}}},
                       {"required", {"n"}}};
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "x"}, {"schema", schema}}}};
  for (const Json& body :
       {Json{{"response_format", format}}, Json{{"structured_outputs", {{"json", schema}}}},
        Json{{"guided_json", schema}}}) {
    ASSERT_EQ(Chat(body).status, 200);
    EXPECT_TRUE(MayWrite("Let me think.</think>{\"n\": 7}")) << body;
    EXPECT_FALSE(MayWrite("Let me think.</think>{\"n\": 10}")) << body;
    EXPECT_FALSE(MayWrite("Let me think.</think>Sure!")) << body;
    ASSERT_EQ(Complete(body).status, 200);
    EXPECT_TRUE(MayWrite("{\"n\": 7}")) << body;
    EXPECT_FALSE(MayWrite("x")) << body;
  }
  ASSERT_EQ(Chat({{"response_format", {{"type", "json_object"}}}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>{\"any\": [1, null]}"));
  EXPECT_FALSE(MayWrite("</think>[]"));
  ASSERT_EQ(Chat({{"guided_regex", "[ab]{2}"}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>ab"));
  EXPECT_FALSE(MayWrite("</think>abc"));
  ASSERT_EQ(Chat({{"guided_choice", {"yes", "no"}}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>no"));
  EXPECT_FALSE(MayWrite("</think>maybe"));
  ASSERT_EQ(Chat({{"guided_grammar", "root ::= \"a\" root | \"b\""}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>aab"));
  EXPECT_FALSE(MayWrite("</think>aa"));
  // With tools as well: one or the other.
  ASSERT_EQ(Chat({{"response_format", format}, {"tools", {kWeather}}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>{\"n\": 7}"));
  EXPECT_TRUE(
      MayWrite("</think>" + Section(Written("functions.get_weather:0", "{\"city\": \"Oslo\"}"))));
  EXPECT_FALSE(MayWrite("</think>text"));
}

TEST_F(ChatPipelineTest, WithoutAReasoningParserAFormHoldsFromTheStart) {
  ServerConfig raw = DefaultConfig();
  raw.reasoning_parser = false;
  Restart("</think>ok", std::move(raw));
  ASSERT_EQ(Chat({{"guided_choice", {"yes", "no"}}}).status, 200);
  EXPECT_TRUE(MayWrite("no"));
  EXPECT_FALSE(MayWrite("hm</think>no"));
  // Nor does a budget make room for thinking in it, which it does in a free answer.
  ASSERT_EQ(Chat({{"guided_choice", {"yes", "no"}}, {"thinking_token_budget", 5}}).status, 200);
  EXPECT_TRUE(MayWrite("no"));
  EXPECT_FALSE(MayWrite("</think>no"));
  ASSERT_EQ(Chat({{"tools", {kWeather}}, {"tool_choice", "required"}, {"thinking_token_budget", 0}})
                .status,
            200);
  EXPECT_FALSE(
      MayWrite("</think>" + Section(Written("functions.get_weather:0", "{\"city\": \"Oslo\"}"))));
  ASSERT_EQ(Chat({{"thinking_token_budget", 0}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>no"));
  EXPECT_FALSE(MayWrite("hm</think>no"));
}

TEST_F(ChatPipelineTest, WhatCannotBeEnforcedIsRefusedOrTold) {
  Json tool = kWeather;
  tool["function"]["parameters"]["properties"]["city"] = {{"type", "string"},
                                                          {"format", "no-such-format"}};
  const test::Answer told = Chat({{"tools", {tool}}});
  EXPECT_EQ(told.status, 200);
  EXPECT_NE(told.Header("x-baltoro-unchecked").find("tools[0].function.parameters"),
            std::string::npos)
      << told.Header("x-baltoro-unchecked");
  // Known from now on, and told again; streams tell it too.
  EXPECT_EQ(Chat({{"tools", {tool}}, {"stream", true}}).Header("x-baltoro-unchecked"),
            told.Header("x-baltoro-unchecked"));
  EXPECT_EQ(Chat({{"tools", {kWeather}}}).Header("x-baltoro-unchecked"), "");

  tool["function"]["strict"] = true;
  const test::Answer refused = Chat({{"tools", {tool}}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_EQ(refused.error()["param"], "tools");
  EXPECT_NE(refused.error()["message"].get<std::string>().find("format"), std::string::npos);

  const auto error = [&](const Json& body) { return Chat(body).error(); };
  EXPECT_EQ(error({{"guided_json", {{"type", "wish"}}}})["param"], "guided_json");
  EXPECT_EQ(error({{"guided_regex", "(a"}})["param"], "guided_regex");
  EXPECT_EQ(error({{"structured_outputs", {{"grammar", "root ::= x"}}}})["param"],
            "structured_outputs");
  const Json nothing = {{"type", "string"}, {"minLength", 3}, {"maxLength", 2}};
  EXPECT_EQ(error({{"response_format",
                    {{"type", "json_schema"}, {"json_schema", {{"schema", nothing}}}}}})["param"],
            "response_format");
}

TEST_F(ChatPipelineTest, ThinkingBudgetsTravel) {
  ASSERT_EQ(Chat({{"thinking_token_budget", 3}}).status, 200);
  const OutputConstraint constraint = Constraint();
  EXPECT_TRUE(constraint.starts_in_reasoning);
  EXPECT_EQ(constraint.thinking_budget, 3);
  EXPECT_FALSE(constraint.grammar);
  EXPECT_FALSE(MayWrite("aaa bbb ccc ddd eee fff</think>x"));
  ASSERT_EQ(Chat({{"thinking_token_budget", 0}}).status, 200);
  EXPECT_TRUE(MayWrite("</think>x"));
  EXPECT_FALSE(MayWrite("a</think>x"));
  ASSERT_EQ(Chat({{"thinking_token_budget", 0}, {"chat_template_kwargs", kInstant}}).status, 200);
  EXPECT_TRUE(MayWrite("x"));
  ASSERT_EQ(Chat({}).status, 200);
  EXPECT_EQ(Last().constraint, "");
}

// K2-Thinking: the template writes thinking into earlier answers, and leaves it to the model to
// open its own. One that only names the mark, to take it out of a history, promises nothing.
TEST_F(ChatPipelineTest, ATemplateThatWritesThinkingAndDoesNotOpenItStartsInIt) {
  const auto source = [](const std::string& before_content) {
    return "{%- for m in messages -%}<|im_user|>user<|im_middle|>" + before_content +
           "<|im_end|>{%- endfor -%}"
           "{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}";
  };
  for (const char* mentions : {"{{ m.content }}", "{#- <think> -#}{{ m.content }}",
                               "{{ m.content.split('<think>')[0] }}"}) {
    template_source_ = source(mentions);
    Restart("<think>hm</think>ok");
    EXPECT_EQ(Chat({}).json()["choices"][0]["message"]["content"], "<think>hm</think>ok");
    ASSERT_EQ(Chat({{"guided_choice", {"yes", "no"}}}).status, 200);
    EXPECT_TRUE(MayWrite("no"));
    EXPECT_FALSE(MayWrite("<think>hm</think>no"));
  }

  template_source_ =
      source("{%- if m.role == 'assistant' -%}<think></think>{%- endif -%}{{ m.content }}");
  Restart("<think>hm</think>ok");
  const Json message = Chat({}).json()["choices"][0]["message"];
  EXPECT_EQ(message["reasoning"], "hm");
  EXPECT_EQ(message["content"], "ok");
  ASSERT_EQ(Chat({{"guided_choice", {"yes", "no"}}}).status, 200);
  EXPECT_TRUE(MayWrite("<think>hm</think>no"));
}

TEST_F(ChatPipelineTest, BadWordsAreBannedWithAndWithoutASpace) {
  ASSERT_EQ(Chat({{"bad_words", {"the"}}, {"chat_template_kwargs", kInstant}}).status, 200);
  const auto banned = Constraint().banned_sequences;
  EXPECT_EQ(std::set(banned.begin(), banned.end()), (std::set{Ids("the"), Ids(" the")}));
  EXPECT_FALSE(MayWrite("the"));
  ASSERT_EQ(Complete({{"bad_words", {"zq jx"}}}).status, 200);
  EXPECT_TRUE(MayWrite("zq"));
  EXPECT_FALSE(MayWrite("zq jx"));
}

TEST_F(ChatPipelineTest, ManyRequestsShareOneGrammar) {
  std::vector<std::jthread> clients;
  std::atomic<int> answered = 0;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (int n = 0; n < 20; ++n) {
        if (Chat({{"tools", {kWeather}}}).status == 200) ++answered;
      }
    });
  }
  clients.clear();
  EXPECT_EQ(answered, 160);
  std::set<std::string> constraints;
  for (const Request& request : engine_->submitted()) constraints.insert(request.constraint.str());
  EXPECT_EQ(constraints.size(), 1u);
}

TEST_F(ChatPipelineTest, WhatTooManyWaitForIsRefused) {
  ServerConfig config = DefaultConfig();
  config.compiling = {.threads = 1, .jobs = 1, .bytes = 1};
  Restart("</think>ok", std::move(config));
  std::vector<std::jthread> clients;
  std::atomic<int> refused = 0, answered = 0;
  for (int i = 0; i < 16; ++i) {
    clients.emplace_back([&, i] {
      const test::Answer answer = Chat({{"guided_regex", "[a-z]{1,2000}" + std::to_string(i)}});
      answered += answer.status == 200;
      refused += answer.status == 429;
    });
  }
  clients.clear();
  EXPECT_EQ(answered + refused, 16);
  EXPECT_GT(answered, 0);
}

}  // namespace
}  // namespace baltoro
