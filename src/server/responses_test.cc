// /v1/responses over real sockets and a scripted engine, and the store behind it.

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <random>

#include "server/response_store.h"
#include "server/route_path.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Play;
using test::PlayOneByOne;
using ::testing::HasSubstr;

constexpr const char* kCall =
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0"
    "<|tool_call_argument_begin|>{\"city\":\"Rome\"}<|tool_call_end|><|tool_calls_section_end|>";

Json WeatherTool() {
  return Json::array(
      {{{"type", "function"}, {"name", "weather"}, {"parameters", {{"type", "object"}}}}});
}

class ResponsesTest : public test::ServerFixture {
 protected:
  Answer Ask(Json extra = Json::object(), HttpHeaders headers = {}) const {
    if (!extra.contains("input")) extra["input"] = "Hello!";
    return Post("/v1/responses", extra, std::move(headers));
  }
  std::string LastPrompt() const {
    return tokenizer_->Decode(engine_->submitted().back().prompt, /*skip_special=*/false);
  }
};

// The response of a stream's last event, held against the events before it.
Json Checked(const Answer& answer) {
  Json output = Json::array();
  Json last;
  for (size_t i = 0; i < answer.events.size(); ++i) {
    const Json event = ParseJson(answer.events[i]).value();
    const std::string type = event["type"];
    EXPECT_EQ(event["sequence_number"], i);
    EXPECT_EQ(i == 0, type == "response.created");
    EXPECT_EQ(i == 1, type == "response.in_progress");
    if (event.contains("output_index") && type != "response.output_item.added") {
      EXPECT_EQ(event["output_index"], output.size() - 1);
    }
    if (type == "response.output_item.added") {
      EXPECT_EQ(event["output_index"], output.size());
      output.push_back(event["item"]);
    } else if (type.ends_with("part.added")) {
      output.back()["content"].push_back(event["part"]);
    } else if (type == "response.function_call_arguments.delta") {
      output.back()["arguments"].get_ref<std::string&>() += event["delta"];
    } else if (type.ends_with("text.delta")) {
      output.back()["content"][0]["text"].get_ref<std::string&>() += event["delta"];
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(event["arguments"], output.back()["arguments"]);
    } else if (type.ends_with("text.done")) {
      EXPECT_EQ(event["text"], output.back()["content"][0]["text"]);
    } else if (type.ends_with("part.done")) {
      EXPECT_EQ(event["part"], output.back()["content"][0]);
    } else if (type == "response.output_item.done") {
      output.back()["status"] = event["item"]["status"];
      EXPECT_EQ(event["item"], output.back());
    }
    last = event;
  }
  EXPECT_THAT(last["type"], ::testing::AnyOf("response.completed", "response.incomplete"));
  EXPECT_EQ(last["response"]["output"], output);
  return last["response"];
}

// Without what differs between two answers that say the same.
Json Nameless(Json response) {
  response.erase("id");
  response.erase("created_at");
  for (Json& item : response["output"]) item.erase("id");
  return response;
}

TEST_F(ResponsesTest, AnAnswerHasItemsInTheOrderOfTheModel) {
  Start([this](const Request&) {
    return PlayOneByOne(Ids(std::string("I think.</think>Let me see.") + kCall + "<|im_end|>"),
                        FinishReason::kStop);
  });
  const Json answer = Ask({{"tools", WeatherTool()}}).json();
  EXPECT_EQ(answer["object"], "response");
  EXPECT_EQ(answer["status"], "completed");
  ASSERT_EQ(answer["output"].size(), 3u) << answer.dump();
  EXPECT_EQ(answer["output"][0]["type"], "reasoning");
  EXPECT_EQ(answer["output"][0]["content"][0]["text"], "I think.");
  EXPECT_EQ(answer["output"][1]["content"][0]["text"], "Let me see.");
  EXPECT_EQ(answer["output"][2]["name"], "weather");
  EXPECT_EQ(answer["output"][2]["call_id"], "functions.weather:0");
  EXPECT_EQ(answer["output"][2]["arguments"], R"({"city":"Rome"})");
  const Json& usage = answer["usage"];
  EXPECT_EQ(usage["total_tokens"],
            usage["input_tokens"].get<int>() + usage["output_tokens"].get<int>());
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_LT(usage["output_tokens_details"]["reasoning_tokens"], usage["output_tokens"]);
}

TEST_F(ResponsesTest, StreamedEqualsWholeForAnythingThatAModelMaySay) {
  const std::vector<std::string> pieces = {"Plain text. ",
                                           "</think>",
                                           "naïve \xF0\x9F\x98\x80 ",
                                           "STOP",
                                           "<think>",
                                           kCall,
                                           "<|tool_calls_section_begin|>",
                                           "<|tool_call_begin|>functions.f:7",
                                           "<|tool_call_argument_begin|>",
                                           "{\"a\":[1,",
                                           "2]}",
                                           "<|tool_call_end|>",
                                           "<|tool_calls_section_end|>",
                                           " \n"};
  std::mt19937 random(8);
  std::vector<TokenId> said;
  FinishReason finish = FinishReason::kStop;
  Start([&](const Request&) {
    std::vector<std::vector<TokenId>> steps;
    std::mt19937 cut(said.size());
    for (size_t i = 0; i < said.size();) {
      const size_t n = std::min<size_t>(said.size() - i, 1 + cut() % 4);
      steps.emplace_back(said.begin() + i, said.begin() + i + n);
      i += n;
    }
    return Play(steps, finish);
  });
  for (int round = 0; round < 200; ++round) {
    std::string text;
    for (size_t i = random() % 12; i > 0; --i) text += pieces[random() % pieces.size()];
    finish = random() % 3 == 0 ? FinishReason::kLength : FinishReason::kStop;
    said = Ids(text + (finish == FinishReason::kStop ? "<|im_end|>" : "x"));
    Json body = {{"stop", "STOP"}, {"tools", WeatherTool()}};
    if (random() % 4 == 0) body["parallel_tool_calls"] = false;
    if (random() % 8 == 0) body["tool_choice"] = "none";
    const Json whole = Nameless(Ask(body).json());
    body["stream"] = true;
    EXPECT_EQ(Nameless(Checked(Ask(body))), whole) << text;
  }
}

// The events at the end hold the whole text several times: more than a stream's buffer.
TEST_F(ResponsesTest, ALongAnswerComesWhole) {
  std::string text;
  for (int i = 0; i < 70000; ++i) text += " word" + std::to_string(i % 10);
  Start([&](const Request&) {
    const std::vector<TokenId> ids = Ids(text + "<|im_end|>");
    std::vector<std::vector<TokenId>> steps;
    for (size_t i = 0; i < ids.size(); i += 5000) {
      steps.emplace_back(ids.begin() + i, ids.begin() + std::min(ids.size(), i + 5000));
    }
    return Play(steps, FinishReason::kStop);
  });
  const Json response =
      Checked(Ask({{"stream", true}, {"chat_template_kwargs", {{"thinking", false}}}}));
  EXPECT_EQ(response["output"][0]["content"][0]["text"], text);
}

TEST_F(ResponsesTest, ACutAnswerIsIncomplete) {
  Start([this](const Request&) { return PlayOneByOne(Ids("One two"), FinishReason::kLength); });
  const Json answer = Ask().json();
  EXPECT_EQ(answer["status"], "incomplete");
  EXPECT_EQ(answer["incomplete_details"], (Json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(answer["output"].back()["status"], "incomplete");
}

TEST_F(ResponsesTest, AnErrorInsideAStreamIsAFailedResponse) {
  Start([this](const Request&) {
    std::vector<TokenEvent> events = PlayOneByOne(Ids("Hello"), FinishReason::kError);
    events.back().Fail(Status(Code::kResourceExhausted, "broken"));
    events.emplace(events.begin())->tokens = Ids("One");
    return events;
  });
  const Json last = ParseJson(Ask({{"stream", true}}).events.back()).value();
  EXPECT_EQ(last["type"], "response.failed");
  EXPECT_EQ(last["response"]["status"], "failed");
  EXPECT_EQ(last["response"]["error"]["message"], "broken");
  EXPECT_EQ(last["response"]["error"]["code"], "rate_limit_exceeded");
}

TEST_F(ResponsesTest, TheConversationIsTheOneOfChat) {
  Start(Says("Hi"));
  const Json call = {{"type", "function"},
                     {"id", "c1"},
                     {"function", {{"name", "weather"}, {"arguments", R"({"city":"Rome"})"}}}};
  Json second = call;
  second["id"] = "c2";
  const Json tools =
      Json::array({{{"type", "function"},
                    {"function", {{"name", "weather"}, {"parameters", {{"type", "object"}}}}}}});
  ASSERT_EQ(Chat({{"tools", tools},
                  {"messages",
                   {{{"role", "system"}, {"content", "Be brief."}},
                    {{"role", "user"}, {"content", "Rome?"}},
                    {{"role", "assistant"},
                     {"content", "Look:"},
                     {"reasoning_content", "Hm."},
                     {"tool_calls", {call, second}}},
                    {{"role", "tool"}, {"tool_call_id", "c1"}, {"content", "sunny"}},
                    {{"role", "tool"}, {"tool_call_id", "c2"}, {"content", "rain"}},
                    {{"role", "user"}, {"content", "Sure?"}}}}})
                .status,
            200);
  const std::string expected = LastPrompt();
  Json items = Json::array();
  items.push_back({{"role", "user"}, {"content", "Rome?"}});
  items.push_back({{"type", "reasoning"},
                   {"summary", Json::array()},
                   {"content", {{{"type", "reasoning_text"}, {"text", "Hm."}}}}});
  items.push_back({{"type", "message"},
                   {"role", "assistant"},
                   {"content", {{{"type", "output_text"}, {"text", "Look:"}}}}});
  for (const char* id : {"c1", "c2"}) {
    items.push_back({{"type", "function_call"},
                     {"call_id", id},
                     {"name", "weather"},
                     {"arguments", R"({"city":"Rome"})"}});
  }
  items.push_back({{"type", "function_call_output"}, {"call_id", "c1"}, {"output", "sunny"}});
  items.push_back({{"type", "function_call_output"},
                   {"call_id", "c2"},
                   {"output", {{{"type", "input_text"}, {"text", "rain"}}}}});
  items.push_back({{"role", "user"}, {"content", "Sure?"}});
  const Answer answer =
      Ask({{"instructions", "Be brief."}, {"tools", WeatherTool()}, {"input", items}});
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(LastPrompt(), expected);
}

TEST_F(ResponsesTest, AStoredAnswerIsReadContinuedAndForgotten) {
  Start([this](const Request& request) {
    const bool first = request.prompt.size() < 60;
    return PlayOneByOne(Ids(first ? "Hm.</think>I am Bo.<|im_end|>" : "Bo.<|im_end|>"),
                        FinishReason::kStop);
  });
  const Json first = Ask({{"input", "Who are you?"}, {"instructions", "One."}}).json();
  const std::string id = first["id"];
  EXPECT_EQ(Get("/v1/responses/" + id).json(), first);
  const Answer second = Ask({{"input", "Again?"}, {"previous_response_id", id}, {"stream", true}});
  const Json response = Checked(second);
  const std::string prompt = LastPrompt();
  for (const char* part : {"Who are you?", "I am Bo.", "Again?"}) {
    EXPECT_THAT(prompt, HasSubstr(part));
  }
  EXPECT_THAT(prompt, ::testing::Not(HasSubstr("One."))) << "instructions are of one turn";
  ASSERT_EQ(Ask({{"input", "And?"}, {"previous_response_id", response["id"]}}).status, 200);
  EXPECT_THAT(LastPrompt(), HasSubstr("Again?"));
  EXPECT_EQ(Post("/v1/responses/" + id + "/cancel", Json::object()).status, 400);
  EXPECT_EQ(Send({.method = "DELETE", .target = "/v1/responses/" + id}).json()["deleted"], true);
  EXPECT_EQ(Get("/v1/responses/" + id).status, 404);
  EXPECT_EQ(Send({.method = "DELETE", .target = "/v1/responses/" + id}).status, 404);
  EXPECT_EQ(Post("/v1/responses/" + id + "/cancel", Json::object()).status, 404);
  const Answer lost = Ask({{"previous_response_id", id}});
  EXPECT_EQ(lost.status, 404);
  EXPECT_EQ(lost.error()["param"], "previous_response_id");
  const std::string unstored = Ask({{"store", false}}).json()["id"];
  EXPECT_EQ(Get("/v1/responses/" + unstored).status, 404);
}

TEST_F(ResponsesTest, InputItemsAreListedPageByPage) {
  Start(Says("Hm.</think>I am Bo."));
  const std::string first = Ask({{"input", "Who are you?"}}).json()["id"];
  const Json call = {
      {"type", "function_call"}, {"call_id", "c"}, {"name", "f"}, {"arguments", "{}"}};
  const Json result = {{"type", "function_call_output"}, {"call_id", "c"}, {"output", "5"}};
  const std::string id =
      Ask({{"input", Json::array({call, result})}, {"previous_response_id", first}}).json()["id"];
  const std::string path = "/v1/responses/" + id + "/input_items";

  const Json all = Get(path + "?order=asc").json();
  EXPECT_EQ(all["object"], "list");
  EXPECT_EQ(all["has_more"], false);
  ASSERT_EQ(all["data"].size(), 5u);  // the question, reasoning, the first answer, call and result
  EXPECT_EQ(all["data"][0]["content"],
            (Json::array({{{"type", "input_text"}, {"text", "Who are you?"}}})));
  EXPECT_EQ(all["data"][1]["type"], "reasoning");
  EXPECT_EQ(all["data"][2]["content"][0]["text"], "I am Bo.");
  EXPECT_EQ(all["data"][4]["output"], "5");
  EXPECT_EQ(all["last_id"], all["data"][4]["id"]);

  Json backwards = Json::array();
  std::string after;
  for (bool more = true; more;) {
    const Json page = Get(path + "?limit=2" + after).json();
    EXPECT_EQ(page["first_id"], page["data"].front()["id"]);
    for (const Json& item : page["data"]) backwards.push_back(item);
    more = page["has_more"];
    after = "&after=" + page["last_id"].get<std::string>();
    ASSERT_LE(backwards.size(), 5u);
  }
  Json reversed = all["data"];
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(backwards, reversed);

  EXPECT_EQ(Get(path + "?limit=0").error()["param"], "limit");
  EXPECT_EQ(Get(path + "?order=up").error()["param"], "order");
  EXPECT_EQ(Get(path + "?after=x").error()["param"], "after");
  EXPECT_EQ(Get("/v1/responses/none/input_items").status, 404);
}

TEST_F(ResponsesTest, PagesOfItemsThatShareAnIdComeToAnEnd) {
  Start(Says("Hm.</think>I am Bo."));
  Json input = Json::array();
  for (const char* id : {"a b", "twin", "twin", "", "twin", "a+b"}) {
    input.push_back({{"type", "message"}, {"role", "user"}, {"content", "Who?"}, {"id", id}});
  }
  const std::string id = Ask({{"input", input}}).json()["id"];
  const std::string path = "/v1/responses/" + id + "/input_items?order=asc&limit=1";
  std::vector<std::string> seen;
  std::string after;
  for (bool more = true; more && seen.size() < 10;) {
    const Json page = Get(path + after).json();
    seen.push_back(page["last_id"]);
    more = page["has_more"];
    std::string written;
    for (const unsigned char c : seen.back()) written += fmt::format("%{:02x}", c);
    after = "&after=" + written;
  }
  EXPECT_THAT(seen, ::testing::ElementsAre("a b", "twin", id + "_input_2", id + "_input_3",
                                           id + "_input_4", "a+b"));
  EXPECT_EQ(Get(path + "&after=a+b").json()["first_id"], "twin");
  EXPECT_EQ(Get(path + "&after=a%2Bb").json()["data"].size(), 0u);
  EXPECT_EQ(Get(path + "&include%5B%5D=x").error()["param"], "include[]");
  EXPECT_EQ(Get(path + "&after=%4").error()["param"], "query");
}

TEST_F(ResponsesTest, AStoredAnswerBelongsToItsKey) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"one", "two"};
  Start(Says("Hi"), config);
  const HttpHeaders one = {{"authorization", "Bearer one"}},
                    two = {{"authorization", "Bearer two"}};
  const std::string id = Ask({}, one).json()["id"];
  EXPECT_EQ(Get("/v1/responses/" + id, one).status, 200);
  EXPECT_EQ(Get("/v1/responses/" + id, two).status, 404);
  EXPECT_EQ(Ask({{"previous_response_id", id}}, two).status, 404);
  EXPECT_EQ(Get("/v1/responses/" + id, {{"x-api-key", "one"}}).status, 200);
}

TEST_F(ResponsesTest, ErrorsNameTheFieldAsItIsHere) {
  Start(Says("Hi"));
  const auto param = [&](Json body) {
    const Answer answer = Ask(std::move(body));
    EXPECT_EQ(answer.status, 400) << answer.body;
    return answer.error().value("param", "");
  };
  EXPECT_EQ(param({{"max_output_tokens", 0}}), "max_output_tokens");
  EXPECT_EQ(param({{"reasoning", {{"effort", "huge"}}}}), "reasoning.effort");
  EXPECT_EQ(param({{"background", true}}), "background");
  EXPECT_EQ(param({{"input", Json::array({{{"type", "strange"}}})}}), "input[0].type");
  EXPECT_EQ(param({{"max_output_tokens", 100000}}), "input");
}

TEST_F(ResponsesTest, APromiseOfACallNeedsTools) {
  Start(Says("</think>ok"));
  EXPECT_EQ(Ask({{"tool_choice", "auto"}}).status, 200);
  EXPECT_EQ(Ask({{"tools", Json::array()}, {"tool_choice", "required"}}).status, 200);
  for (const Json& choice : {Json("required"), Json{{"type", "function"}, {"name", "weather"}}}) {
    const Answer refused = Ask({{"tool_choice", choice}});
    EXPECT_EQ(refused.status, 400) << choice;
    EXPECT_EQ(refused.error()["param"], "tool_choice") << choice;
  }
}

TEST(ResponseStoreTest, TheOldestGoFirst) {
  ManualClock clock;
  ResponseStore store(clock, {.entries = 4, .bytes = 100000, .age = 10});
  store.Put("a", "o", "o", {"1", "[]"});
  store.Put("b", "o", "o", {"2", "[]"});
  store.Put("c", "o", "o", {"3", "[]"});
  EXPECT_EQ(store.Get("a", "o"), nullptr) << "one alone has half of the places";
  EXPECT_EQ(store.Get("c", "o")->response, "3");
  EXPECT_EQ(store.Get("c", "p"), nullptr);
  EXPECT_FALSE(store.Erase("c", "p"));
  clock.Advance(11);
  EXPECT_EQ(store.Get("c", "o"), nullptr);
  EXPECT_EQ(store.entries(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStoreTest, BytesAreBoundedForEachClient) {
  const ManualClock clock;
  ResponseStore store(clock, {.entries = 100, .bytes = 8000, .age = 10});
  store.Put("other", "p", "p", {"1", "[]"});
  for (int i = 0; i < 50; ++i) {
    store.Put(std::to_string(i), "o", "o", {std::string(500, 'x'), "[]"});
    EXPECT_LE(store.bytes(), 4500u);
  }
  EXPECT_NE(store.Get("49", "o"), nullptr);
  store.Put("huge", "o", "o", {std::string(5000, 'x'), "[]"});
  EXPECT_EQ(store.Get("huge", "o"), nullptr);
  EXPECT_NE(store.Get("49", "o"), nullptr) << "one that is too large drives out nothing";
  EXPECT_NE(store.Get("other", "p"), nullptr) << "nor do others' many";
}

TEST(ResponseStoreTest, APictureCountsOnceForAClientAndUntilNobodyHasIt) {
  const ManualClock clock;
  ResponseStore store(clock, {.entries = 100, .bytes = 100000, .age = 10});
  const auto picture = [] { return std::make_shared<const std::string>(10000, 'x'); };
  auto one = store.Keep("o", "[]", {picture()});
  ASSERT_TRUE(one.ok());
  const size_t alone = store.bytes();
  EXPECT_GE(alone, 10000u);
  auto two = store.Keep("o", "[]", {picture()});
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(one.value().pictures[0], two.value().pictures[0]);
  EXPECT_LT(store.bytes(), alone + 100);
  auto others = store.Keep("p", "[]", {picture()});
  ASSERT_TRUE(others.ok());
  EXPECT_NE(others.value().pictures[0], one.value().pictures[0]);
  store.Put("a", "o", "o",
            {.response = "1", .items = "[]", .conversation = std::move(one.value())});
  two.value() = KeptConversation();
  others.value() = KeptConversation();
  EXPECT_GE(store.bytes(), 10000u);
  EXPECT_LT(store.bytes(), 20000u);
  EXPECT_TRUE(store.Erase("a", "o"));
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStoreTest, ThereIsRoomForWhatIsBeingMadeBeforeWhatIsStored) {
  const ManualClock clock;
  ResponseStore store(clock, {.entries = 100, .bytes = 20000, .age = 10});
  store.Put("a", "o", "o", {std::string(5000, 'x'), "[]"});
  const auto first = store.Keep("o", std::string(8000, ' '), {});
  EXPECT_TRUE(first.ok());
  EXPECT_EQ(store.Get("a", "o"), nullptr);
  const auto second = store.Keep("o", std::string(8000, ' '), {});
  EXPECT_EQ(second.status().code(), Code::kResourceExhausted);
  EXPECT_EQ(store.bytes(), 8000u);
}

TEST(RoutePathTest, OneArgument) {
  constexpr std::string_view kCancel = "/v1/responses/{id}/cancel";
  EXPECT_TRUE(PathMatches("/health", "/health"));
  EXPECT_FALSE(PathMatches("/health", "/healthy"));
  EXPECT_TRUE(PathMatches(kCancel, "/v1/responses/a/cancel"));
  EXPECT_FALSE(PathMatches(kCancel, "/v1/responses//cancel"));
  EXPECT_FALSE(PathMatches(kCancel, "/v1/responses/cancel"));
  EXPECT_FALSE(PathMatches(kCancel, "/v1/responses/a/b/cancel"));
  EXPECT_EQ(PathArgument(kCancel, "/v1/responses/a%20b/cancel"), "a b");
  constexpr std::string_view kModel = "/v1/models/{model}";
  EXPECT_FALSE(PathMatches(kModel, "/v1/models/"));
  EXPECT_EQ(PathArgument(kModel, "/v1/models/moonshotai/Kimi-K2"), "moonshotai/Kimi-K2");
  EXPECT_EQ(PathArgument(kModel, "/v1/models/moonshotai%2FKimi-K2"), "moonshotai/Kimi-K2");
  EXPECT_EQ(PathArgument(kModel, "/v1/models/a%2"), std::nullopt);
  EXPECT_EQ(PathArgument(kModel, "/v1/models/a%zz"), std::nullopt);
}

}  // namespace
}  // namespace baltoro
