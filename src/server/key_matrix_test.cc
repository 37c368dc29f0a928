// What one API key may see of another, for every route: a route that is not in the table below
// fails here until somebody has thought about it.

#include <gmock/gmock.h>

#include <map>
#include <set>
#include <sstream>

#include "grammar/constraint_factory.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;

// What an answer of a route may depend on.
enum class Shows {
  kOpen,         // needs no key; what it tells is the server's, or a sum over all
  kSum,          // needs a key; a sum over all requests, or of the whole engine
  kSame,         // the same for every key
  kOwnPrefixes,  // makes an answer, with prompts that the same key has sent before
  kOwnAnswers,   // finds what the same key has stored
  kOwnErrors,    // finds what the same key was refused: recent_errors_test.cc
};

struct MatrixRow {
  Shows shows;
  Json body;                // of a request; null: none
  const char* cached = "";  // where usage tells the cached tokens
};

const std::map<std::string, MatrixRow>& Matrix() {
  std::string text;
  for (int i = 0; i < 300; ++i) text += " word" + std::to_string(i % 7);
  const Json messages = {{{"role", "user"}, {"content", text}}};
  const char* const openai = "/usage/prompt_tokens_details/cached_tokens";
  static const std::map<std::string, MatrixRow> matrix = {
      {"GET /health", {Shows::kOpen, {}}},
      {"GET /ping", {Shows::kOpen, {}}},
      {"POST /ping", {Shows::kOpen, {}}},
      {"GET /version", {Shows::kOpen, {}}},
      {"GET /metrics", {Shows::kOpen, {}}},
      {"GET /docs", {Shows::kOpen, {}}},
      {"GET /", {Shows::kOpen, {}}},
      {"GET /page/{file}", {Shows::kOpen, {}}},
      {"GET /server_info", {Shows::kSame, {}}},
      {"GET /recent_errors", {Shows::kOwnErrors, {}}},
      {"GET /openapi.json", {Shows::kOpen, {}}},
      {"GET /load", {Shows::kSum, {}}},
      {"GET /v1/models", {Shows::kSame, {}}},
      {"GET /v1/models/{model}", {Shows::kSame, {}}},
      {"POST /tokenize", {Shows::kSame, {{"prompt", "Hello"}}}},
      {"POST /detokenize", {Shows::kSame, {{"tokens", {300, 301}}}}},
      {"GET /tokenizer_info", {Shows::kSame, {}}},
      {"POST /reset_prefix_cache", {Shows::kSame, {}}},
      {"POST /start_profile", {Shows::kSum, {}}},
      {"POST /stop_profile", {Shows::kSum, {}}},
      {"POST /v1/chat/completions/render",
       {Shows::kSame, {{"messages", messages}, {"request_id", "r"}}}},
      {"POST /v1/completions/render", {Shows::kSame, {{"prompt", text}, {"request_id", "r"}}}},
      {"POST /v1/responses/render", {Shows::kSame, {{"input", text}}}},
      {"POST /v1/messages/count_tokens", {Shows::kSame, {{"messages", messages}}}},
      {"POST /v1/chat/completions",
       {Shows::kOwnPrefixes, {{"messages", messages}, {"max_tokens", 2}}, openai}},
      {"POST /v1/completions",
       {Shows::kOwnPrefixes, {{"prompt", text}, {"max_tokens", 2}}, openai}},
      {"POST /v1/messages",
       {Shows::kOwnPrefixes,
        {{"messages", messages}, {"max_tokens", 2}},
        "/usage/cache_read_input_tokens"}},
      {"POST /v1/responses",
       {Shows::kOwnPrefixes,
        {{"input", text}, {"max_output_tokens", 2}},
        "/usage/input_tokens_details/cached_tokens"}},
      {"GET /v1/responses/{id}", {Shows::kOwnAnswers, {}}},
      {"GET /v1/responses/{id}/input_items", {Shows::kOwnAnswers, {}}},
      {"POST /v1/responses/{id}/cancel", {Shows::kOwnAnswers, {}}},
      {"DELETE /v1/responses/{id}", {Shows::kOwnAnswers, {}}},
  };
  return matrix;
}

const HttpHeaders kOne = {{"authorization", "Bearer key-one"}};
const HttpHeaders kTwo = {{"authorization", "Bearer key-two"}};

HttpHeaders With(HttpHeaders headers, const std::string& name, const std::string& value) {
  headers.emplace_back(name, value);
  return headers;
}

class KeyMatrixTest : public test::ServerFixture {
 protected:
  ~KeyMatrixTest() override {
    if (server_ != nullptr) server_->SetEngine(nullptr);
  }

  void Start(std::vector<std::string> keys, bool share = false, double step_ms = 0) {
    if (server_ != nullptr) server_->SetEngine(nullptr);
    real_engine_.reset();  // before the server that it tells
    ServerConfig config = WithAllRoutes();
    config.api_keys = std::move(keys);
    config.share_prefix_cache = share;
    ASSERT_NO_FATAL_FAILURE(StartServer(std::move(config)));
    EngineConfig engine_config;
    engine_config.load_format = "stand-in";
    engine_config.tokenizer_dir = test::kPocketDir;
    engine_config.stand_in_step_ms = step_ms;
    auto engine = StartEngine(
        engine_config, server_->sink(), nullptr,
        [](const std::string& dir, int32_t vocab) { return MakeConstraintFactory(dir, vocab); });
    ASSERT_TRUE(engine.ok()) << engine.status().message();
    real_engine_ = std::move(engine).value();
    server_->SetEngine(real_engine_.get());
  }

  Answer Ask(const std::string& route, HttpHeaders headers, const std::string& argument = "") {
    const size_t space = route.find(' ');
    std::string target = route.substr(space + 1);
    if (const size_t open = target.find('{'); open != std::string::npos) {
      target.replace(open, target.find('}') - open + 1, argument);
    }
    const Json& body = Matrix().at(route).body;
    return Send({.method = route.substr(0, space),
                 .target = target,
                 .headers = std::move(headers),
                 .body = body.is_null() ? "" : body.dump()});
  }

  int64_t Cached(const std::string& route, const HttpHeaders& headers) {
    const Answer answer = Ask(route, headers);
    EXPECT_EQ(answer.status, 200) << route << ": " << answer.body;
    const Json body = answer.json();
    const Json::json_pointer place(Matrix().at(route).cached);
    EXPECT_TRUE(body.contains(place)) << route << ": " << answer.body;
    return body.value(place, int64_t{-1});
  }

  std::unique_ptr<Engine> real_engine_;
};

std::vector<std::string> RoutesThatShow(Shows shows) {
  std::vector<std::string> out;
  for (const auto& [route, row] : Matrix()) {
    if (row.shows == shows) out.push_back(route);
  }
  return out;
}

TEST_F(KeyMatrixTest, EveryRouteHasItsPlace) {
  StartServer(WithAllRoutes());
  std::set<std::string> listed, placed;
  for (const auto& [route, row] : Matrix()) placed.insert(route);

  std::istringstream routes(server_->RouteList());
  constexpr std::string_view kRoute = "Route: ", kMethods = ", Methods: ";
  for (std::string line; std::getline(routes, line);) {
    const size_t end = line.find(kMethods);
    ASSERT_NE(end, std::string::npos) << line;
    listed.insert(line.substr(end + kMethods.size()) + " " +
                  line.substr(kRoute.size(), end - kRoute.size()));
  }

  EXPECT_EQ(listed, placed) << "say in the matrix what one key may see of another";
}

TEST_F(KeyMatrixTest, OnlyOpenRoutesAreOpen) {
  Start({"key-one", "key-two"});
  for (const auto& [route, row] : Matrix()) {
    const bool open = row.shows == Shows::kOpen;
    for (const HttpHeaders& headers :
         {HttpHeaders{}, HttpHeaders{{"authorization", "Bearer other"}},
          HttpHeaders{{"authorization", "Bearer other"}, {"x-api-key", "other"}}}) {
      EXPECT_EQ(Ask(route, headers, "x").status == 401, !open) << route;
    }
    EXPECT_NE(Ask(route, kOne, "x").status, 401) << route;
    EXPECT_NE(Ask(route, {{"x-api-key", "key-two"}}, "x").status, 401) << route;
  }
}

TEST_F(KeyMatrixTest, SomeAnswersAreTheSameForAll) {
  Start({"key-one", "key-two"});
  for (const std::string& route : RoutesThatShow(Shows::kSame)) {
    const Answer one = Ask(route, kOne, "pocket"), two = Ask(route, kTwo, "pocket");
    EXPECT_EQ(one.status, 200) << route << one.body;
    if (route == "POST /v1/responses/render") {  // each has an id of its own
      EXPECT_EQ(one.json()["token_ids"], two.json()["token_ids"]) << route;
      continue;
    }
    EXPECT_EQ(one.body, two.body) << route;
  }
  EXPECT_EQ(Get("/load", kTwo).body, R"({"server_load":0})");
}

TEST_F(KeyMatrixTest, AKeyFindsItsOwnPrefixesOnly) {
  for (const std::string& route : RoutesThatShow(Shows::kOwnPrefixes)) {
    Start({"key-one", "key-two"});
    EXPECT_EQ(Cached(route, kOne), 0) << route;
    EXPECT_GT(Cached(route, kOne), 0) << route;
    EXPECT_EQ(Cached(route, kTwo), 0) << route;
    EXPECT_GT(Cached(route, kTwo), 0) << route;
    // The same key in the other header, and in front of one that is none.
    EXPECT_GT(Cached(route, {{"x-api-key", "key-two"}}), 0) << route;
    EXPECT_GT(Cached(route, {{"authorization", "Bearer other"}, {"x-api-key", "key-one"}}), 0);
  }
}

TEST_F(KeyMatrixTest, ASaltThatAClientSendsDoesNotLeadToAnothersPrefixes) {
  Start({"key-one", "key-two"});
  Json body = Matrix().at("POST /v1/completions").body;
  const auto cached = [&](const HttpHeaders& headers, const std::string& salt) {
    body["cache_salt"] = salt;
    const Answer answer = Post("/v1/completions", body, headers);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"].get<int64_t>();
  };
  EXPECT_EQ(cached(kOne, "salt"), 0);
  EXPECT_GT(cached(kOne, "salt"), 0);
  EXPECT_EQ(cached(kOne, "other"), 0);
  EXPECT_EQ(cached(kTwo, "salt"), 0);
}

TEST_F(KeyMatrixTest, EachKeyIsAnOwnerToTheScheduler) {
  const auto owners = [&](std::vector<std::string> keys) {
    if (server_ != nullptr) server_->SetEngine(nullptr);
    engine_.reset();
    ServerConfig config = DefaultConfig();
    config.api_keys = std::move(keys);
    config.share_prefix_cache = true;  // which has nothing to do with it
    ServerFixture::Start(
        [](const Request&) { return test::PlayOneByOne({300}, FinishReason::kStop); },
        std::move(config));
    for (const HttpHeaders& headers : {kOne, kTwo, kOne}) {
      EXPECT_EQ(Post("/v1/completions", {{"prompt", "Hello"}}, headers).status, 200);
    }
    std::vector<uint64_t> out;
    for (const Request& request : engine_->submitted()) out.push_back(request.owner);
    return out;
  };
  const std::vector<uint64_t> two = owners({"key-one", "key-two"});
  EXPECT_THAT(two, ::testing::ElementsAre(two[0], ::testing::Ne(two[0]), two[0]));
  EXPECT_THAT(owners({}), ::testing::ElementsAre(0, 0, 0));
}

TEST_F(KeyMatrixTest, PrefixesAreSharedWhereThatIsAskedForOrThereIsOneKey) {
  const std::string route = "POST /v1/completions";
  Start({"key-one", "key-two"}, /*share=*/true);
  EXPECT_EQ(Cached(route, kOne), 0);
  EXPECT_GT(Cached(route, kTwo), 0);

  Start({});
  EXPECT_EQ(Cached(route, kOne), 0);
  EXPECT_GT(Cached(route, kTwo), 0);

  Start({"key-one", "key-one"});
  EXPECT_EQ(Cached(route, kOne), 0);
  EXPECT_GT(Cached(route, kOne), 0);
}

TEST_F(KeyMatrixTest, AKeyFindsItsOwnStoredAnswersOnly) {
  Start({"key-one", "key-two"});
  const Answer made = Ask("POST /v1/responses", kOne);
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string id = made.json()["id"];
  std::string made_up = id;
  made_up.back() = made_up.back() == '0' ? '1' : '0';

  for (const std::string& route : RoutesThatShow(Shows::kOwnAnswers)) {
    // Another key hears what it would hear of one that never was.
    const Answer denied = Ask(route, kTwo, id), unknown = Ask(route, kTwo, made_up);
    EXPECT_EQ(denied.status, 404) << route;
    EXPECT_EQ(unknown.status, 404) << route;
    std::string body = denied.body;
    ASSERT_NE(body.find(id), std::string::npos) << body;
    body.replace(body.find(id), id.size(), made_up);
    EXPECT_EQ(body, unknown.body) << route;
  }
  const Json next = {{"input", "and?"}, {"max_output_tokens", 2}, {"previous_response_id", id}};
  EXPECT_EQ(Post("/v1/responses", next, kTwo).status, 404);
  EXPECT_EQ(Post("/v1/responses", next, kOne).status, 200);
  EXPECT_EQ(Ask("GET /v1/responses/{id}", kOne, id).status, 200);
  EXPECT_EQ(Ask("GET /v1/responses/{id}/input_items", kOne, id).status, 200);
  EXPECT_EQ(Ask("POST /v1/responses/{id}/cancel", kOne, id).status, 400);
  EXPECT_EQ(Ask("DELETE /v1/responses/{id}", kOne, id).status, 200);
}

// The names that clients give to their requests lead to nothing: who hangs up ends its own.
TEST_F(KeyMatrixTest, ARequestIdOfAnotherKeyIsNoHandleOnItsRequest) {
  Start({"key-one", "key-two"}, /*share=*/false, /*step_ms=*/1);
  const Json body = {{"prompt", "Hello"},
                     {"max_tokens", 200},
                     {"ignore_eos", true},
                     {"request_id", "mine"},
                     {"temperature", 0}};
  Answer whole;
  std::jthread other(
      [&] { whole = Post("/v1/completions", body, With(kTwo, "x-request-id", "mine")); });
  ASSERT_TRUE(test::Eventually([&] { return real_engine_->stats().running == 1; }));

  Json streamed = body;
  streamed["stream"] = true;
  HttpClient client = Client();
  (void)client.Stream({.method = "POST",
                       .target = "/v1/completions",
                       .headers = With(kOne, "x-request-id", "mine"),
                       .body = streamed.dump()},
                      [](const SseEvent&) { return false; });
  other.join();

  EXPECT_EQ(whole.status, 200) << whole.body;
  EXPECT_EQ(whole.json()["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(whole.json()["usage"]["completion_tokens"], 200);
}

// Compiled grammars are kept for all: an answer does not tell whether one was.
TEST_F(KeyMatrixTest, AnAnswerDoesNotTellWhetherItsGrammarWasKnown) {
  Start({"key-one", "key-two"});
  const Json body = {{"prompt", "Hello"},
                     {"max_tokens", 8},
                     {"seed", 1},
                     {"structured_outputs", {{"regex", "[a-c]{2,4}"}}}};
  const auto ask = [&](const HttpHeaders& headers) {
    Answer answer = Post("/v1/completions", body, With(headers, "x-request-id", "same"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    Json shown = answer.json();
    shown.erase("created");
    std::set<std::string> names;
    for (const auto& [name, value] : answer.headers) names.insert(name);
    return std::pair(shown, names);
  };
  EXPECT_EQ(ask(kOne), ask(kTwo));
}

}  // namespace
}  // namespace baltoro
