// The fields of both generating endpoints: limits, refusals, defaults.

#include <gtest/gtest.h>

#include "server/chat_request.h"
#include "server/completion_request.h"
#include "server/messages_request.h"
#include "server/responses_request.h"

namespace baltoro {
namespace {

GenerationLimits TestLimits() {
  GenerationLimits limits;
  limits.vocab_size = 2304;
  limits.max_model_len = 4096;
  return limits;
}

std::optional<ApiError> ReadChat(Json fields,
                                 ChatRequest& out,
                                 const GenerationLimits& limits = TestLimits()) {
  if (!fields.contains("messages")) {
    fields["messages"] = {{{"role", "user"}, {"content", "hi"}}};
  }
  return ReadChatRequest(fields, limits, Json(), out);
}

std::optional<ApiError> ReadCompletion(Json fields,
                                       CompletionRequest& out,
                                       const GenerationLimits& limits = TestLimits()) {
  if (!fields.contains("prompt")) fields["prompt"] = "hi";
  return ReadCompletionRequest(fields, limits, out);
}

// "" when accepted, else the parameter that the refusal names.
std::string ChatRefusal(const Json& fields, const GenerationLimits& limits = TestLimits()) {
  ChatRequest out;
  const auto error = ReadChat(fields, out, limits);
  if (!error) return "";
  EXPECT_EQ(error->status, 400);
  EXPECT_EQ(error->type, "BadRequestError");
  return error->param.value_or("(none)");
}

std::string CompletionRefusal(const Json& fields, const GenerationLimits& limits = TestLimits()) {
  CompletionRequest out;
  const auto error = ReadCompletion(fields, out, limits);
  if (!error) return "";
  EXPECT_EQ(error->status, 400);
  return error->param.value_or("(none)");
}

struct NumberField {
  const char* name;
  Json lowest, highest;        // accepted; null: see below
  Json below, above;           // refused
  Json also = Json::object();  // fields that it needs
};

class NumberFieldTest : public ::testing::TestWithParam<NumberField> {};

TEST_P(NumberFieldTest, LimitsAreExact) {
  const NumberField& field = GetParam();
  const auto refusal = [&](const Json& value) {
    Json body = field.also;
    body[field.name] = value;
    return ChatRefusal(body);
  };

  EXPECT_EQ(refusal(field.lowest), "");
  EXPECT_EQ(refusal(field.highest), "");
  EXPECT_EQ(refusal(field.below), field.name);
  EXPECT_EQ(refusal(field.above), field.name);
  EXPECT_EQ(refusal(nullptr), "");
}

TEST_P(NumberFieldTest, OtherKindsAreRefusedByName) {
  const NumberField& field = GetParam();
  for (const Json& value : {Json("1"), Json(true), Json::array({1}), Json::object()}) {
    Json body = field.also;
    body[field.name] = value;
    EXPECT_EQ(ChatRefusal(body), field.name) << value.dump();
  }
}

const Json kLogprobs = {{"logprobs", true}};

INSTANTIATE_TEST_SUITE_P(
    All,
    NumberFieldTest,
    ::testing::Values(NumberField{"temperature", 0, 100, -0.001, 100.001},
                      NumberField{"top_p", 1e-6, 1, 0, 1.000001},
                      NumberField{"min_p", 0, 1, -1e-6, 1.000001},
                      NumberField{"top_k", -1, INT32_MAX, -2, int64_t{INT32_MAX} + 1},
                      NumberField{"presence_penalty", -2, 2, -2.001, 2.001},
                      NumberField{"frequency_penalty", -2, 2, -2.001, 2.001},
                      NumberField{"repetition_penalty", 1e-6, 100, 0, 100.001},
                      NumberField{"min_tokens", 0, 4096, -1, 4097},
                      NumberField{"max_tokens", 1, INT32_MAX, 0, int64_t{INT32_MAX} + 1},
                      NumberField{"max_completion_tokens", 1, INT32_MAX, 0, int64_t{INT32_MAX} + 1},
                      NumberField{"n", 1, 16, 0, 17},
                      NumberField{"top_logprobs", 0, 20, -1, 21, kLogprobs},
                      NumberField{"prompt_logprobs", 0, 20, -1, 21},
                      NumberField{"truncate_prompt_tokens", -1, 4096, -2, 4097},
                      NumberField{"priority", INT32_MIN, INT32_MAX, int64_t{INT32_MIN} - 1,
                                  int64_t{INT32_MAX} + 1},
                      NumberField{"seed", INT64_MIN, INT64_MAX, -1e300, uint64_t{1} << 63}),
    [](const auto& tested) { return tested.param.name; });

TEST(RequestFieldsTest, WholeNumbersMayBeWrittenWithAPoint) {
  ChatRequest out;

  EXPECT_FALSE(ReadChat({{"max_tokens", 5.0}}, out));

  EXPECT_EQ(out.fields.max_tokens, 5);
  EXPECT_EQ(ChatRefusal({{"max_tokens", 5.5}}), "max_tokens");
  EXPECT_EQ(ChatRefusal({{"n", 1e308}}), "n");
}

TEST(RequestFieldsTest, CompletionLogprobsHaveTheSameCap) {
  EXPECT_EQ(CompletionRefusal({{"logprobs", 20}}), "");
  EXPECT_EQ(CompletionRefusal({{"logprobs", 21}}), "logprobs");
  EXPECT_EQ(CompletionRefusal({{"logprobs", -1}}), "logprobs");
}

TEST(RequestFieldsTest, WithoutACapMinusOneAsksForAllLogprobs) {
  GenerationLimits limits = TestLimits();
  limits.max_logprobs = -1;
  CompletionRequest out;

  EXPECT_FALSE(ReadCompletion({{"logprobs", -1}}, out, limits));

  EXPECT_EQ(out.fields.sampling.logprobs, 2304);
}

TEST(RequestFieldsTest, TokenIdsAreHeldToTheWidthOfTheLogits) {
  for (const char* name : {"stop_token_ids", "allowed_token_ids"}) {
    EXPECT_EQ(ChatRefusal({{name, {0, 2303}}}), "") << name;
    for (const Json& id : {Json(-1), Json(2304), Json(INT32_MAX), Json(uint64_t{1} << 63),
                           Json(1.5), Json("1"), Json(true)}) {
      EXPECT_EQ(ChatRefusal({{name, {id}}}), name) << id.dump();
    }
  }
  EXPECT_EQ(ChatRefusal({{"allowed_token_ids", Json::array()}}), "allowed_token_ids");
  EXPECT_EQ(ChatRefusal({{"stop_token_ids", std::vector<int>(256, 1)}}), "");
  EXPECT_EQ(ChatRefusal({{"stop_token_ids", std::vector<int>(257, 1)}}), "stop_token_ids");
  for (const Json& id : {Json(-1), Json(2304), Json(uint64_t{1} << 63)}) {
    EXPECT_EQ(CompletionRefusal({{"prompt", Json::array({id})}}), "prompt") << id.dump();
  }
}

TEST(RequestFieldsTest, LogitBiasIsClampedAndChecked) {
  ChatRequest out;

  EXPECT_FALSE(ReadChat({{"logit_bias", {{"0", 1000}, {"2303", -1000}}}}, out));

  EXPECT_EQ(out.fields.sampling.logit_bias,
            (std::vector<std::pair<TokenId, float>>{{0, 100.f}, {2303, -100.f}}));
  EXPECT_EQ(ChatRefusal({{"logit_bias", {{"2304", 1}}}}), "logit_bias");
  EXPECT_EQ(ChatRefusal({{"logit_bias", {{"-1", 1}}}}), "logit_bias");
  EXPECT_EQ(ChatRefusal({{"logit_bias", {{"99999999999999999999", 1}}}}), "logit_bias");
  EXPECT_EQ(ChatRefusal({{"logit_bias", {{"1", "2"}}}}), "logit_bias");
  Json many = Json::object();
  for (int i = 0; i < 1024; ++i) many[std::to_string(i)] = 1;
  EXPECT_EQ(ChatRefusal({{"logit_bias", many}}), "");
  many["1024"] = 1;
  EXPECT_EQ(ChatRefusal({{"logit_bias", many}}), "logit_bias");
}

TEST(RequestFieldsTest, StopStringsAreBounded) {
  EXPECT_EQ(ChatRefusal({{"stop", std::string(256, 'x')}}), "");
  EXPECT_EQ(ChatRefusal({{"stop", std::string(257, 'x')}}), "stop");
  EXPECT_EQ(ChatRefusal({{"stop", std::vector<std::string>(16, "x")}}), "");
  EXPECT_EQ(ChatRefusal({{"stop", std::vector<std::string>(17, "x")}}), "stop");
  EXPECT_EQ(ChatRefusal({{"stop", ""}}), "stop");
  EXPECT_EQ(ChatRefusal({{"stop", {"a", ""}}}), "stop");
  EXPECT_EQ(ChatRefusal({{"stop", {1}}}), "stop");
}

TEST(RequestFieldsTest, TextFieldsAreBounded) {
  EXPECT_EQ(ChatRefusal({{"cache_salt", std::string(128, 's')}}), "");
  EXPECT_EQ(ChatRefusal({{"cache_salt", std::string(129, 's')}}), "cache_salt");
  EXPECT_EQ(ChatRefusal({{"cache_salt", ""}}), "cache_salt");
  EXPECT_EQ(ChatRefusal({{"request_id", std::string(64, 'r')}}), "");
  EXPECT_EQ(ChatRefusal({{"request_id", std::string(65, 'r')}}), "request_id");
  EXPECT_EQ(ChatRefusal({{"request_id", "a b"}}), "request_id");
  EXPECT_EQ(ChatRefusal({{"user", std::string(512, 'u')}}), "");
  EXPECT_EQ(ChatRefusal({{"user", std::string(513, 'u')}}), "user");
}

TEST(RequestFieldsTest, FeaturesThatAreNotHereAreRefusedByName) {
  for (const char* name : {"prompt_embeds", "repetition_detection", "logits_processors"}) {
    EXPECT_EQ(ChatRefusal({{name, {{"x", 1}}}}), name);
    EXPECT_EQ(CompletionRefusal({{name, {{"x", 1}}}}), name);
    EXPECT_EQ(ChatRefusal({{name, nullptr}}), "") << name;
  }
  EXPECT_EQ(ChatRefusal({{"use_beam_search", true}}), "use_beam_search");
  EXPECT_EQ(ChatRefusal({{"use_beam_search", false}}), "");
  EXPECT_EQ(ChatRefusal({{"chat_template", "{{ 1 }}"}}), "chat_template");
  EXPECT_EQ(ChatRefusal({{"functions", {{{"name", "f"}}}}}), "functions");
  EXPECT_EQ(ChatRefusal({{"function_call", "auto"}}), "function_call");
  EXPECT_EQ(ChatRefusal({{"functions", nullptr}, {"function_call", nullptr}}), "");
  EXPECT_EQ(ChatRefusal({{"messages",
                          {{{"role", "user"}, {"content", "x"}},
                           {{"role", "assistant"},
                            {"content", nullptr},
                            {"function_call", {{"name", "f"}, {"arguments", "{}"}}}}}}}),
            "messages[1].function_call");
  EXPECT_EQ(CompletionRefusal({{"suffix", "x"}}), "suffix");
  EXPECT_EQ(CompletionRefusal({{"suffix", ""}}), "");
  EXPECT_EQ(CompletionRefusal({{"best_of", 2}}), "best_of");
  EXPECT_EQ(CompletionRefusal({{"best_of", 2}, {"n", 2}}), "");
}

// Fields of any API that would change what an answer is, with a value that asks for something.
const std::vector<std::pair<std::string, Json>> kActing = {
    {"audio", {{"voice", "alloy"}, {"format", "wav"}}},
    {"documents", {{{"title", "a"}, {"text", "b"}}}},
    {"kv_transfer_params", {{"do_remote_decode", true}}},
    {"logits_processors", {"x"}},
    {"logprob_token_ids", {1}},
    {"modalities", {"text", "audio"}},
    {"prompt_embeds", "AAAA"},
    {"repetition_detection", {{"min_count", 2}}},
    {"vllm_xargs", {{"x", 1}}},
    {"web_search_options", {{"search_context_size", "low"}}}};

TEST(RequestFieldsTest, NoApiDropsAFieldThatWouldChangeTheAnswer) {
  for (const auto& [name, value] : kActing) {
    EXPECT_EQ(ChatRefusal({{name, value}}), name);
    EXPECT_EQ(CompletionRefusal({{name, value}}), name);
    ResponsesRequest responses;
    auto error = ReadResponsesRequest({{"input", "hi"}, {name, value}}, {}, responses);
    EXPECT_EQ(error ? error->param.value_or("") : "accepted", name);
    MessagesRequest messages;
    error = ReadMessagesRequest(
        {{"messages", {{{"role", "user"}, {"content", "hi"}}}}, {"max_tokens", 1}, {name, value}},
        MessagesUse::kGenerate, messages);
    EXPECT_EQ(error ? error->param.value_or("") : "accepted", name);
    for (const Json& nothing : {Json(nullptr), Json::array(), Json::object(), Json("")}) {
      EXPECT_EQ(ChatRefusal({{name, nothing}}), "") << name << " " << nothing;
    }
  }
  EXPECT_EQ(ChatRefusal({{"modalities", {"text"}}}), "");
  EXPECT_EQ(ChatRefusal({{"messages",
                          {{{"role", "user"}, {"content", "x"}},
                           {{"role", "assistant"}, {"audio", {{"id", "audio_1"}}}},
                           {{"role", "user"}, {"content", "x"}}}}}),
            "messages[1].audio");
}

TEST(RequestFieldsTest, UnknownFieldsAreIgnored) {
  EXPECT_EQ(ChatRefusal({{"never_heard_of", {1, 2, 3}}}), "");
  EXPECT_EQ(CompletionRefusal({{"never_heard_of", {1, 2, 3}}}), "");
}

TEST(RequestFieldsTest, CombinationsAreChecked) {
  EXPECT_EQ(ChatRefusal({{"top_logprobs", 1}}), "top_logprobs");
  EXPECT_EQ(ChatRefusal({{"n", 2}, {"temperature", 0}}), "n");
  EXPECT_EQ(ChatRefusal({{"n", 1}, {"temperature", 0}}), "");
  EXPECT_EQ(ChatRefusal({{"stream_options", {{"include_usage", true}}}}), "stream_options");
  EXPECT_EQ(ChatRefusal({{"stream", true}, {"stream_options", {{"include_usage", 1}}}}),
            "stream_options");
  EXPECT_EQ(ChatRefusal({{"stream", true}, {"stream_options", {{"include_usage", true}}}}), "");
  EXPECT_EQ(ChatRefusal({{"stream", true}, {"prompt_logprobs", 1}}), "prompt_logprobs");
  EXPECT_EQ(ChatRefusal({{"continue_final_message", true}, {"add_generation_prompt", true}}),
            "continue_final_message");
  EXPECT_EQ(CompletionRefusal({{"max_tokens", 0}}), "max_tokens");
  EXPECT_EQ(CompletionRefusal({{"max_tokens", 0}, {"echo", true}}), "");
}

TEST(RequestFieldsTest, SmallTemperaturesAreRaised) {
  ChatRequest out;
  EXPECT_FALSE(ReadChat({{"temperature", 0.005}}, out));
  EXPECT_FLOAT_EQ(out.fields.sampling.temperature, 0.01f);
  EXPECT_FALSE(ReadChat({{"temperature", 0.02}}, out));
  EXPECT_FLOAT_EQ(out.fields.sampling.temperature, 0.02f);
}

TEST(RequestFieldsTest, DefaultsComeFromTheServer) {
  GenerationLimits limits = TestLimits();
  limits.defaults.temperature = 0.6f;
  limits.defaults.top_p = 0.95f;
  ChatRequest out;

  EXPECT_FALSE(ReadChat({{"top_p", 0.5}}, out, limits));

  EXPECT_FLOAT_EQ(out.fields.sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(out.fields.sampling.top_p, 0.5f);
  EXPECT_FALSE(out.fields.seed_given);
  EXPECT_EQ(out.fields.n, 1);
  EXPECT_EQ(out.fields.max_tokens, -1);
}

TEST(RequestFieldsTest, MessagesAreChecked) {
  const auto refusal = [](const Json& messages) { return ChatRefusal({{"messages", messages}}); };
  EXPECT_EQ(refusal(nullptr), "messages");
  EXPECT_EQ(refusal(Json::array()), "messages");
  EXPECT_EQ(refusal("hi"), "messages");
  EXPECT_EQ(refusal({"hi"}), "messages[0]");
  EXPECT_EQ(refusal({{{"content", "hi"}}}), "messages[0].role");
  EXPECT_EQ(refusal({{{"role", "wizard"}, {"content", "hi"}}}), "messages[0].role");
  EXPECT_EQ(refusal({{{"role", "user"}}}), "messages[0].content");
  EXPECT_EQ(refusal({{{"role", "user"}, {"content", 1}}}), "messages[0].content");
  EXPECT_EQ(refusal({{{"role", "tool"}, {"content", "x"}, {"tool_call_id", 1}}}),
            "messages[0].tool_call_id");
  const Json image = {{"type", "image_url"}, {"image_url", {{"url", "data:"}}}};
  EXPECT_EQ(refusal({{{"role", "user"}, {"content", Json::array({image})}}}), "");
  EXPECT_EQ(refusal({{{"role", "system"}, {"content", Json::array({image})}}}), "");
  const Json none = {{"type", "image_url"}};
  EXPECT_EQ(refusal({{{"role", "user"}, {"content", Json::array({none})}}}),
            "messages[0].content[0].image_url");
  const Json sound = {{"type", "input_audio"}, {"input_audio", "x"}};
  EXPECT_EQ(refusal({{{"role", "user"}, {"content", Json::array({sound})}}}),
            "messages[0].content[0].type");
  const Json text = {{"type", "text"}, {"text", "hi"}};
  const Json message = {{"role", "user"}, {"content", "x"}};
  EXPECT_EQ(refusal(std::vector<Json>(4096, message)), "");
  EXPECT_EQ(refusal(std::vector<Json>(4097, message)), "messages");
  const std::vector<Json> parts(1024, text);
  EXPECT_EQ(refusal({{{"role", "user"}, {"content", parts}}}), "");
  EXPECT_EQ(refusal({{{"role", "user"}, {"content", parts}},
                     {{"role", "user"}, {"content", Json::array({text})}}}),
            "messages");
}

TEST(RequestFieldsTest, ToolsAreChecked) {
  const Json tool = {{"type", "function"}, {"function", {{"name", "f"}}}};
  EXPECT_EQ(ChatRefusal({{"tools", std::vector<Json>(128, tool)}}), "");
  EXPECT_EQ(ChatRefusal({{"tools", std::vector<Json>(129, tool)}}), "tools");
  EXPECT_EQ(ChatRefusal({{"tools", {1}}}), "tools");
  EXPECT_EQ(ChatRefusal({{"tools", {{{"function", {{"name", ""}}}}}}}), "tools");
  Json big = tool;
  big["function"]["description"] = std::string(256 * 1024, 'd');
  EXPECT_EQ(ChatRefusal({{"tools", Json::array({big})}}), "tools");
  EXPECT_EQ(ChatRefusal({{"tool_choice", "auto"}}), "");
  EXPECT_EQ(ChatRefusal({{"tool_choice", "none"}}), "");
  EXPECT_EQ(ChatRefusal({{"tool_choice", "required"}}), "tool_choice");
  EXPECT_EQ(ChatRefusal({{"tools", nullptr}, {"tool_choice", "required"}}), "tool_choice");
  const Json one = {{"type", "function"}, {"function", {{"name", "f"}}}};
  EXPECT_EQ(ChatRefusal({{"tool_choice", one}}), "tool_choice");
  EXPECT_EQ(ChatRefusal({{"tools", Json::array()}, {"tool_choice", one}}), "tool_choice");
  // As upstream: an empty list with "required" is no promise.
  ChatRequest empty;
  EXPECT_FALSE(ReadChat({{"tools", Json::array()}, {"tool_choice", "required"}}, empty));
  EXPECT_EQ(empty.tool_choice, ToolChoice::kNone);
  EXPECT_EQ(ChatRefusal({{"tools", Json::array({tool})}, {"tool_choice", "sometimes"}}),
            "tool_choice");

  ChatRequest out;
  EXPECT_FALSE(ReadChat({{"tools", Json::array({tool})}}, out));
  EXPECT_EQ(out.tool_choice, ToolChoice::kAuto);
  ChatRequest none;
  EXPECT_FALSE(ReadChat({{"tools", Json::array()}}, none));
  EXPECT_EQ(none.tool_choice, ToolChoice::kNone);
  ChatRequest required;
  EXPECT_FALSE(ReadChat({{"tools", Json::array({tool})}, {"tool_choice", "required"}}, required));
  EXPECT_EQ(required.tool_choice, ToolChoice::kRequired);

  const auto named = [&](const Json& choice) {
    return ChatRefusal({{"tools", Json::array({tool})}, {"tool_choice", choice}});
  };
  EXPECT_EQ(named({{"type", "function"}, {"function", {{"name", "f"}}}}), "");
  EXPECT_EQ(named({{"type", "function"}, {"function", {{"name", "g"}}}}), "tool_choice");
  EXPECT_EQ(named({{"type", "function"}}), "tool_choice");
  EXPECT_EQ(named({{"type", "wish"}, {"function", {{"name", "f"}}}}), "tool_choice");
  ChatRequest chosen;
  EXPECT_FALSE(ReadChat({{"tools", Json::array({tool})},
                         {"tool_choice", {{"type", "function"}, {"function", {{"name", "f"}}}}}},
                        chosen));
  EXPECT_EQ(chosen.tool_choice, ToolChoice::kNamed);
  EXPECT_EQ(chosen.named_tool, "f");

  const auto allowed = [&](const Json& inner) {
    return named({{"type", "allowed_tools"}, {"allowed_tools", inner}});
  };
  EXPECT_EQ(allowed({{"mode", "auto"}, {"tools", {one}}}), "");
  EXPECT_EQ(allowed({{"mode", "required"}, {"tools", {one}}}), "");
  EXPECT_EQ(allowed({{"mode", "none"}, {"tools", {one}}}), "tool_choice");
  EXPECT_EQ(allowed({{"mode", "auto"}, {"tools", Json::array()}}), "tool_choice");
  EXPECT_EQ(allowed({{"mode", "auto"}, {"tools", {1}}}), "tool_choice");
  EXPECT_EQ(allowed({{"mode", "auto"}, {"tools", {{{"function", {{"name", "f"}}}}}}}),
            "tool_choice");
  EXPECT_EQ(allowed({{"mode", "auto"}, {"tools", std::vector<Json>(129, one)}}), "tool_choice");
  EXPECT_EQ(allowed(1), "tool_choice");
  EXPECT_EQ(named({{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", {one}}}), "tool_choice");
  EXPECT_EQ(ChatRefusal({{"tool_choice",
                          {{"type", "allowed_tools"},
                           {"allowed_tools", {{"mode", "auto"}, {"tools", {one}}}}}}}),
            "tool_choice");

  const auto declared = [&](const char* key, const Json& value) {
    Json wrong = tool;
    wrong["function"][key] = value;
    return ChatRefusal({{"tools", Json::array({wrong})}});
  };
  EXPECT_EQ(declared("name", "a b"), "tools");
  EXPECT_EQ(declared("name", "a\nb"), "tools");
  EXPECT_EQ(declared("name", std::string(257, 'n')), "tools");
  EXPECT_EQ(declared("name", "a.b-c:d/\xC3\xA9"), "");
  EXPECT_EQ(declared("parameters", 1), "tools");
  EXPECT_EQ(declared("parameters", nullptr), "");
  EXPECT_EQ(declared("strict", "yes"), "tools");
  EXPECT_EQ(declared("strict", true), "");
}

TEST(RequestFieldsTest, TheFormOfTheAnswerHasManyNames) {
  const auto form = [](const Json& fields) {
    ChatRequest out;
    const auto error = ReadChat(fields, out);
    EXPECT_FALSE(error) << error->message;
    return out.fields.form;
  };
  const Json schema = {{"type", "object"}};
  EXPECT_EQ(form({{"response_format", {{"type", "text"}}}}).kind, OutputFormKind::kFree);
  EXPECT_EQ(form({{"response_format", {{"type", "json_object"}}}}).kind,
            OutputFormKind::kJsonObject);
  const Json format = {{"type", "json_schema"},
                       {"json_schema", {{"name", "n"}, {"schema", schema}, {"strict", true}}}};
  for (const Json& fields :
       {Json{{"response_format", format}}, Json{{"structured_outputs", {{"json", schema}}}},
        Json{{"structured_outputs", {{"json", schema.dump()}, {"regex", nullptr}}}},
        Json{{"guided_json", schema}}, Json{{"guided_json", schema.dump()}}}) {
    EXPECT_EQ(form(fields).kind, OutputFormKind::kJsonSchema) << fields;
    EXPECT_EQ(form(fields).schema, schema) << fields;
  }
  EXPECT_EQ(form({{"response_format", format}}).path, "response_format.json_schema.schema");
  EXPECT_EQ(form({{"structured_outputs", {{"json_object", true}}}}).kind,
            OutputFormKind::kJsonObject);
  EXPECT_EQ(form({{"structured_outputs", {{"regex", "a+"}}}}).text, "a+");
  EXPECT_EQ(form({{"guided_regex", "a+"}}).kind, OutputFormKind::kRegex);
  EXPECT_EQ(form({{"guided_grammar", "root ::= \"a\""}}).kind, OutputFormKind::kGrammar);
  EXPECT_EQ(form({{"guided_choice", {"a", "b"}}}).choices, (std::vector<std::string>{"a", "b"}));
  CompletionRequest completion;
  EXPECT_FALSE(
      ReadCompletionRequest({{"prompt", "x"}, {"guided_choice", {"a"}}}, TestLimits(), completion));
  EXPECT_EQ(completion.fields.form.kind, OutputFormKind::kChoice);

  EXPECT_EQ(ChatRefusal({{"response_format", "json"}}), "response_format");
  EXPECT_EQ(ChatRefusal({{"response_format", {{"type", "structural_tag"}}}}), "response_format");
  EXPECT_EQ(ChatRefusal({{"response_format", {{"type", "json_schema"}}}}), "response_format");
  EXPECT_EQ(ChatRefusal({{"structured_outputs", Json::object()}}), "structured_outputs");
  EXPECT_EQ(ChatRefusal({{"structured_outputs", {{"json", schema}, {"regex", "a"}}}}),
            "structured_outputs");
  EXPECT_EQ(ChatRefusal({{"structured_outputs", {{"regex", "a"}, {"whitespace_pattern", " "}}}}),
            "structured_outputs");
  EXPECT_EQ(ChatRefusal({{"structured_outputs", {{"json", "{"}}}}), "structured_outputs");
  EXPECT_EQ(ChatRefusal({{"structured_outputs", {{"json", 1}}}}), "structured_outputs");
  EXPECT_EQ(ChatRefusal({{"guided_choice", Json::array()}}), "guided_choice");
  EXPECT_EQ(ChatRefusal({{"guided_choice", {1}}}), "guided_choice");
  EXPECT_EQ(ChatRefusal({{"guided_regex", ""}}), "guided_regex");
  EXPECT_EQ(ChatRefusal({{"guided_regex", std::string(16 * 1024 + 1, 'a')}}), "guided_regex");
  EXPECT_EQ(ChatRefusal({{"guided_whitespace_pattern", " "}}), "guided_whitespace_pattern");
  EXPECT_EQ(ChatRefusal({{"guided_regex", "a"}, {"response_format", format}}), "guided_regex");
}

// What a client is told: the field is named once, and where inside it.
std::string ChatMessage(const Json& fields) {
  ChatRequest out;
  const auto error = ReadChat(fields, out);
  return error ? error->message : "";
}

TEST(RequestFieldsTest, APlaceInsideAFieldIsSaidOnce) {
  EXPECT_EQ(ChatMessage({{"structured_outputs", {{"choice", {1}}}}}),
            "structured_outputs.choice: each choice must be a string that is not empty");
  EXPECT_EQ(ChatMessage(
                {{"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", 1}}}}}}),
            "response_format.json_schema.schema: the schema must be an object");
  EXPECT_EQ(ChatMessage({{"guided_regex", ""}}), "guided_regex: must be a text that is not empty");
}

TEST(RequestFieldsTest, OneNameIsOneTool) {
  const auto tool = [](const char* name, const char* description) {
    return Json{{"type", "function"}, {"function", {{"name", name}, {"description", description}}}};
  };
  EXPECT_EQ(ChatMessage({{"tools", {tool("get_weather", "a"), tool("get_weather", "b")}}}),
            "tools: the name get_weather is given twice");
  EXPECT_EQ(ChatMessage({{"tools", {tool("f", "a"), tool("g", "b"), tool("f", "a")}}}), "");
}

TEST(RequestFieldsTest, ArgumentsAreAnObject) {
  const auto refusal = [](const char* schema) {
    const Json function = {{"name", "f"}, {"parameters", Json::parse(schema)}};
    return ChatMessage({{"tools", {{{"type", "function"}, {"function", function}}}}});
  };
  for (const char* wrong :
       {R"({"type":"array"})", R"({"type":"string"})", R"({"type":["string","null"]})",
        R"({"const":1})", R"({"enum":["a",2]})", R"({"anyOf":[{"type":"string"},{"const":[]}]})",
        R"({"oneOf":[false]})", R"({"type":"object","allOf":[{},{"type":"array"}]})"}) {
    EXPECT_EQ(refusal(wrong),
              "tools[0].function: arguments must be an object, and parameters allows none")
        << wrong;
  }
  for (const char* right :
       {R"({})", R"({"type":"object"})", R"({"type":["object","null"]})", R"({"const":{}})",
        R"({"enum":[1,{}]})", R"({"anyOf":[{"type":"string"},{"type":"object"}]})",
        R"({"type":"dict"})", R"({"allOf":[]})",
        R"({"properties":{"type":{"type":"string"},"const":{"const":1}}})"}) {
    EXPECT_EQ(refusal(right), "") << right;
  }
}

TEST(RequestFieldsTest, ThinkingHasABudget) {
  const auto budget = [](const Json& fields) {
    ChatRequest out;
    const auto error = ReadChat(fields, out);
    EXPECT_FALSE(error) << error->message;
    return out.fields.thinking_budget;
  };
  EXPECT_EQ(budget(Json::object()), -1);
  EXPECT_EQ(budget({{"thinking_token_budget", 0}}), 0);
  EXPECT_EQ(budget({{"thinking", {{"type", "enabled"}, {"budget_tokens", 64}}}}), 64);
  EXPECT_EQ(budget({{"thinking", {{"type", "enabled"}, {"budget_tokens", 64}}},
                    {"thinking_token_budget", 32}}),
            32);
  EXPECT_EQ(ChatRefusal({{"thinking_token_budget", -1}}), "thinking_token_budget");
  EXPECT_EQ(ChatRefusal({{"thinking", {{"type", "enabled"}, {"budget_tokens", "x"}}}}), "thinking");
}

TEST(RequestFieldsTest, EverySpellingOfThinkingBecomesOne) {
  const auto thinking = [](const Json& fields) -> Json {
    ChatRequest out;
    const auto error = ReadChat(fields, out);
    EXPECT_FALSE(error) << error->message;
    return out.template_kwargs.contains("thinking") ? out.template_kwargs["thinking"] : Json();
  };
  EXPECT_EQ(thinking({{"chat_template_kwargs", {{"thinking", false}}}}), Json(false));
  EXPECT_EQ(thinking({{"thinking", {{"type", "disabled"}}}}), Json(false));
  EXPECT_EQ(thinking({{"thinking", {{"type", "enabled"}}}}), Json(true));
  EXPECT_EQ(thinking({{"reasoning_effort", "none"}}), Json(false));
  EXPECT_EQ(thinking({{"reasoning_effort", "high"}}), Json());
  EXPECT_EQ(thinking({{"chat_template_kwargs", {{"thinking", "false"}}}}), Json(false));
  EXPECT_EQ(thinking({{"chat_template_kwargs", {{"enable_thinking", false}}}}), Json(false));
  EXPECT_EQ(thinking({{"chat_template_kwargs", {{"enable_thinking", "False"}}}}), Json(false));
  EXPECT_EQ(thinking({{"chat_template_kwargs", {{"enable_thinking", false}, {"thinking", true}}}}),
            Json(true));
  EXPECT_EQ(thinking({{"reasoning_effort", "none"}, {"thinking", {{"type", "enabled"}}}}),
            Json(true));
  EXPECT_EQ(ChatRefusal({{"reasoning_effort", "extreme"}}), "reasoning_effort");
  EXPECT_EQ(ChatRefusal({{"thinking", true}}), "thinking");
  EXPECT_EQ(ChatRefusal({{"chat_template_kwargs", {{"thinking", 1}}}}), "chat_template_kwargs");
}

TEST(RequestFieldsTest, PromptsComeInFourForms) {
  const auto count = [](const Json& prompt) {
    CompletionRequest out;
    const auto error = ReadCompletion({{"prompt", prompt}}, out);
    EXPECT_FALSE(error) << error->message;
    return out.prompts.size();
  };
  EXPECT_EQ(count("a"), 1u);
  EXPECT_EQ(count({1, 2}), 1u);
  EXPECT_EQ(count({"a", "b"}), 2u);
  EXPECT_EQ(count(Json::array({Json::array({1}), Json::array({2, 3}), "c"})), 3u);
  EXPECT_EQ(count(std::vector<std::string>(64, "a")), 64u);
  for (const Json& prompt :
       {Json(), Json(1), Json::array(), Json::array({Json::array()}), Json::array({1, "a"}),
        Json::array({1.5}), Json(std::vector<std::string>(65, "a"))}) {
    EXPECT_EQ(CompletionRefusal({{"prompt", prompt}}), "prompt") << prompt.dump();
  }
}

TEST(RequestFieldsTest, WithoutATokenizerOnlyTokenIdsAreTaken) {
  GenerationLimits limits = TestLimits();
  limits.has_text = false;
  EXPECT_EQ(CompletionRefusal({{"prompt", "a"}}, limits), "prompt");
  EXPECT_EQ(CompletionRefusal({{"prompt", Json::array({Json::array({1}), "a"})}}, limits),
            "prompt");
  EXPECT_EQ(CompletionRefusal({{"prompt", {1, 2}}}, limits), "");
  EXPECT_EQ(CompletionRefusal({{"prompt", {1, 2}}, {"stop", "x"}}, limits), "stop");
}

// What FitToPrompt makes of max_tokens; -1 when it refuses.
int64_t Fitted(GenerationFields fields,
               int64_t prompt_tokens,
               std::optional<int64_t> implied = std::nullopt,
               std::optional<int32_t> cap = std::nullopt) {
  GenerationLimits limits = TestLimits();
  limits.max_tokens_cap = cap;
  return FitToPrompt(prompt_tokens, limits, implied, fields) ? -1 : fields.max_tokens;
}

GenerationFields With(int64_t max_tokens, int32_t min_tokens = 0, int32_t n = 1) {
  GenerationFields fields;
  fields.max_tokens = max_tokens;
  fields.min_tokens = min_tokens;
  fields.n = n;
  return fields;
}

TEST(FitToPromptTest, PromptAndAnswerMustFitTheModel) {
  EXPECT_EQ(Fitted(With(96), 4000), 96);
  EXPECT_EQ(Fitted(With(97), 4000), -1);
  EXPECT_EQ(Fitted(With(-1), 4095), 1);
  EXPECT_EQ(Fitted(With(-1), 4096), -1);
  EXPECT_EQ(Fitted(With(-1), 4097), -1);
  EXPECT_EQ(Fitted(With(-1), 0), -1);
}

TEST(FitToPromptTest, WhatIsNotGivenIsImplied) {
  EXPECT_EQ(Fitted(With(-1), 96), 4000);
  EXPECT_EQ(Fitted(With(-1), 96, 16), 16);
  EXPECT_EQ(Fitted(With(-1), 4090, 16), 6);
  EXPECT_EQ(Fitted(With(-1, 100), 96, 16), 100) << "min_tokens raises an implied limit";
  EXPECT_EQ(Fitted(With(-1, 0, 16), 96), 1024) << "four lengths of the model over all choices";
}

TEST(FitToPromptTest, MinTokensIsHeldToMaxTokensEvenWhenThatIsNull) {
  EXPECT_EQ(Fitted(With(10, 10), 96), 10);
  EXPECT_EQ(Fitted(With(10, 11), 96), -1);
  EXPECT_EQ(Fitted(With(-1, 4000), 96), 4000);
  EXPECT_EQ(Fitted(With(-1, 4001), 96), -1);
}

TEST(FitToPromptTest, AllChoicesTogetherAreBounded) {
  EXPECT_EQ(Fitted(With(1024, 0, 16), 96), 1024);
  EXPECT_EQ(Fitted(With(1025, 0, 16), 96), -1);
}

TEST(FitToPromptTest, TheModelsOwnCapHoldsForEveryone) {
  EXPECT_EQ(Fitted(With(-1), 96, std::nullopt, 64), 64);
  EXPECT_EQ(Fitted(With(100), 96, std::nullopt, 64), 64);
  EXPECT_EQ(Fitted(With(10), 96, std::nullopt, 64), 10);
}

TEST(FitToPromptTest, TheSentenceIsTheOneThatClientsKnow) {
  GenerationFields fields = With(100);

  const auto error = FitToPrompt(4000, TestLimits(), std::nullopt, fields);

  ASSERT_TRUE(error);
  EXPECT_EQ(error->param, "input_tokens");
  EXPECT_EQ(error->message,
            "This model's maximum context length is 4096 tokens. However, you requested 100 output "
            "tokens and your prompt contains 4000 input tokens, for a total of 4100 tokens. Please "
            "reduce the length of the input prompt or the number of requested output tokens.");
}

TEST(TruncatePromptTest, TheLastTokensAreKept) {
  GenerationFields fields = With(96);
  fields.truncate_prompt_tokens = 2;
  std::vector<TokenId> prompt = {1, 2, 3};

  TruncatePrompt(fields, TestLimits(), prompt);
  EXPECT_EQ(prompt, (std::vector<TokenId>{2, 3}));

  fields.truncate_prompt_tokens = -1;
  prompt.assign(5000, 7);
  TruncatePrompt(fields, TestLimits(), prompt);
  EXPECT_EQ(prompt.size(), 4000u);
}

TEST(ForChoiceTest, ChoicesDifferInTheirSeedOnly) {
  GenerationFields fields = With(10);
  fields.sampling.seed = 5;
  fields.seed_given = true;
  fields.sampling.prompt_logprobs = 1;
  const Request first = MakeRequest(fields, {1, 2}, {9}, /*base_seed=*/77);

  const Request zero = ForChoice(first, 0);
  Request one = ForChoice(first, 1);

  EXPECT_EQ(zero, first);
  EXPECT_EQ(first.sampling.seed, 5u);
  EXPECT_NE(one.sampling.seed, first.sampling.seed);
  EXPECT_EQ(one.sampling.prompt_logprobs, -1);
  one.sampling = first.sampling;
  EXPECT_EQ(one, first);
}

}  // namespace
}  // namespace baltoro
