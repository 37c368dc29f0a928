// What every request passes through: routes, keys, headers, states of the engine, counts.

#include <gmock/gmock.h>

#include <cctype>
#include <set>
#include <sstream>

#include "base/file.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using test::Eventually;
using test::FakeEngine;
using ::testing::HasSubstr;
using ::testing::Not;

class ServerDoorTest : public test::ServerFixture {};

TEST_F(ServerDoorTest, BeforeTheEngineIsThereItAnswers503) {
  StartServer();

  const Answer health = Get("/health");
  const Answer chat = Chat();

  EXPECT_EQ(health.status, 503);
  EXPECT_EQ(chat.status, 503);
  EXPECT_EQ(chat.Header("retry-after"), "1");
  EXPECT_EQ(chat.Header("connection"), "close");
  EXPECT_EQ(chat.error()["type"], "ServiceUnavailableError");
  EXPECT_EQ(chat.error()["code"], 503);
  EXPECT_EQ(Get("/v1/models").status, 200);
  EXPECT_EQ(Get("/version").json()["version"], "1.2.3");
}

TEST_F(ServerDoorTest, HealthIsAHeartbeat) {
  Start(Says("x"));
  EXPECT_EQ(Get("/health").status, 200);
  EXPECT_EQ(Get("/health").body, "");
  EXPECT_EQ(Get("/ping").status, 200);
  EXPECT_EQ(Send({.method = "POST", .target = "/ping"}).status, 200);

  engine_->set_healthy(false);
  EXPECT_EQ(Get("/health").status, 503);
  EXPECT_EQ(Chat().status, 503);
  engine_->set_healthy(true);
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ServerDoorTest, HealthSaysWhatAnOperatorAsksNext) {
  StartServer();
  EXPECT_FALSE(Get("/health").json().contains("engine")) << "nothing has gone wrong yet";
  Start(Says("x"));
  engine_->set_health(
      {.trouble = EngineTrouble::kRefused, .failed_starts = 11, .next_start = 41.2});

  const Json waiting = Get("/health").json();
  EXPECT_EQ(waiting["error"]["code"], 503);
  EXPECT_EQ(waiting["engine"], (Json{{"reason", "The engine refused its files or settings."},
                                     {"failed_starts", 11},
                                     {"next_start_seconds", 42}}));
  engine_->set_health({.trouble = EngineTrouble::kNoPeer,
                       .next_start = {},
                       .lost_node = 1,
                       .lost_replicas = {2, 3}});
  const Json missing = Get("/health").json()["engine"];
  EXPECT_EQ(missing["nodes_missing"], Json({1}));
  EXPECT_EQ(missing["replicas_missing"], Json({2, 3}));
  engine_->set_health({.trouble = EngineTrouble::kStalled, .next_start = {}});
  EXPECT_EQ(Get("/health").json()["engine"]["next_start_seconds"], nullptr);
  EXPECT_FALSE(Chat().json().contains("engine"));
}

TEST_F(ServerDoorTest, ADrainingServerFinishesWhatRunsAndRefusesTheRest) {
  Start(Says("done"));
  engine_->Hold(true);
  Answer running;
  std::jthread client([&] { running = Chat(); });
  ASSERT_TRUE(Eventually([&] { return engine_->submitted().size() == 1; }));

  std::jthread drain([&] { server_->Drain(20); });
  ASSERT_TRUE(Eventually([&] { return Get("/health").status == 503; }));
  const Answer refused = Chat();
  engine_->Hold(false);
  client.join();
  drain.join();

  EXPECT_EQ(refused.status, 503);
  EXPECT_THAT(refused.error()["message"].get<std::string>(), HasSubstr("shutting down"));
  EXPECT_EQ(running.status, 200);
}

TEST_F(ServerDoorTest, ADrainEndsWhenItsTimeIsUp) {
  Start(Says("never"));
  engine_->Hold(true);
  std::jthread client([&] {
    HttpClient http = Client();
    (void)http.Send({.method = "POST", .target = "/v1/completions", .body = R"({"prompt":"x"})"});
  });
  ASSERT_TRUE(Eventually([&] { return engine_->submitted().size() == 1; }));

  server_->Drain(0.2);

  EXPECT_EQ(engine_->aborts(), 1u);
}

TEST_F(ServerDoorTest, UnknownPathsAndMethodsAreToldApart) {
  Start(Says("x"));

  const Answer path = Get("/v1/nothing");
  const Answer method = Get("/v1/chat/completions");

  EXPECT_EQ(path.status, 404);
  EXPECT_EQ(path.error()["type"], "Not Found");
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.Header("allow"), "POST");
  EXPECT_EQ(method.error()["code"], 405);
}

TEST_F(ServerDoorTest, HeadIsGetWithoutABody) {
  Start(Says("x"));
  HttpClient client = Client();

  const auto head = client.Send({.method = "HEAD", .target = "/v1/models"});

  ASSERT_TRUE(head.ok()) << head.status().message();
  EXPECT_EQ(head.value().status, 200);
  EXPECT_EQ(head.value().body, "");
}

TEST_F(ServerDoorTest, AKeyIsNeededWhereSomethingIsToBeHad) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"first-key", "second-key"};
  Start(Says("x"), config);
  const std::vector<std::pair<std::string, std::string>> closed = {
      {"GET", "/v1/models"},       {"POST", "/v1/chat/completions"},
      {"POST", "/v1/completions"}, {"POST", "/tokenize"},
      {"POST", "/detokenize"},     {"GET", "/load"},
      {"GET", "/v1/nothing"},      {"POST", "/"},
      {"GET", "//health"},         {"GET", "/health/"},
      {"GET", "/v1/../health"},    {"GET", "/V1/models"},
      {"GET", "/%76ersion"},       {"GET", "/health/../v1/models"},
      {"DELETE", "/v1/models"},    {"GET", "/health;x"},
      {"POST", "/health"},         {"GET", "/metrics/"},
      {"POST", "/metrics"},        {"GET", "/v1/models?key=first-key"}};
  for (const auto& [method, path] : closed) {
    for (const char* value : {"", "Bearer", "Bearer ", "Bearer wrong", "first-key",
                              "Basic first-key", "Bearer first-key2", "Bearer first-ke",
                              "Bearer first-key,second-key", "Bearer  first-key"}) {
      const Answer answer = Send(
          {.method = method, .target = path, .headers = {{"authorization", value}}, .body = "{}"});
      EXPECT_EQ(answer.status, 401) << method << " " << path << " " << value;
      EXPECT_EQ(answer.body, R"({"error":"Unauthorized"})");
      EXPECT_EQ(answer.Header("www-authenticate"), "Bearer");
    }
  }
  for (const char* open : {"/health", "/ping", "/version", "/metrics"}) {
    EXPECT_EQ(Get(open).status, 200) << open;
  }
  for (const char* value : {"Bearer first-key", "bearer second-key", "BEARER first-key"}) {
    EXPECT_EQ(Get("/v1/models", {{"authorization", value}}).status, 200) << value;
  }
}

TEST_F(ServerDoorTest, AnEmptyKeyOpensNothing) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {""};
  Start(Says("x"), config);

  EXPECT_EQ(Get("/v1/models").status, 401);
  EXPECT_EQ(Get("/v1/models", {{"authorization", "Bearer "}}).status, 401);
}

TEST_F(ServerDoorTest, WithKeysAllOriginsMayAskUnlessSomeAreNamed) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"key"};
  Start(Says("x"), config);
  const HttpHeaders asked = {{"origin", "https://a.example"},
                             {"access-control-request-method", "POST"},
                             {"access-control-request-headers", "authorization, content-type"}};

  const Answer simple = Get("/v1/models", {{"origin", "https://a.example"}});
  const Answer preflight =
      Send({.method = "OPTIONS", .target = "/v1/chat/completions", .headers = asked});

  EXPECT_EQ(simple.Header("access-control-allow-origin"), "*");
  EXPECT_EQ(simple.Header("access-control-allow-credentials"), "");
  EXPECT_EQ(preflight.status, 200);
  EXPECT_EQ(preflight.Header("access-control-allow-methods"), "*");
  EXPECT_EQ(preflight.Header("access-control-allow-headers"), "authorization, content-type");
  EXPECT_EQ(Get("/v1/models").Header("access-control-allow-origin"), "");
}

TEST_F(ServerDoorTest, NamedOriginsOnly) {
  ServerConfig config = DefaultConfig();
  config.cors.origins = {"https://a.example"};
  config.cors.credentials = true;
  config.api_keys = {"key"};
  Start(Says("x"), config);

  const Answer good = Get("/v1/models", {{"origin", "https://a.example"}});
  const Answer bad = Get("/v1/models", {{"origin", "https://b.example"}});

  EXPECT_EQ(good.status, 401);  // and the browser may read that
  EXPECT_EQ(good.Header("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(good.Header("vary"), "Origin");
  EXPECT_EQ(good.Header("access-control-allow-credentials"), "true");
  EXPECT_EQ(bad.Header("access-control-allow-origin"), "");
}

TEST_F(ServerDoorTest, WithoutKeysAStrangersPageGetsNothingFromALoopbackAddress) {
  Start(Says("x"));
  const HttpHeaders rebound = {{"host", "evil.example:8000"}};
  const HttpHeaders foreign = {{"origin", "https://evil.example"}};

  for (const HttpHeaders& headers : {rebound, foreign}) {
    for (const char* path : {"/health", "/metrics", "/v1/models", "/v1/nothing"}) {
      const Answer answer = Get(path, headers);
      EXPECT_EQ(answer.status, 403) << path;
      EXPECT_EQ(answer.error()["type"], "Forbidden");
      EXPECT_EQ(answer.error()["code"], 403);
      EXPECT_EQ(answer.Header("access-control-allow-origin"), "");
    }
    EXPECT_EQ(Send({.method = "OPTIONS", .target = "/v1/models", .headers = headers}).status, 403);
    EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}}, headers).status, 403);
    const Answer messages = Post("/v1/messages", {{"max_tokens", 1}}, headers);
    EXPECT_EQ(messages.status, 403);
    EXPECT_EQ(messages.json()["type"], "error");
    EXPECT_EQ(messages.error()["type"], "permission_error");
  }
  EXPECT_TRUE(engine_->submitted().empty());
  EXPECT_THAT(Get("/metrics").body,
              HasSubstr("baltoro:requests_rejected_total{reason=\"forbidden\"} 14\n"));
  const Answer own =
      Get("/v1/models", {{"host", "localhost:8000"}, {"origin", "http://[::1]:3000"}});
  EXPECT_EQ(own.status, 200);
  EXPECT_EQ(own.Header("access-control-allow-origin"), "");
}

TEST_F(ServerDoorTest, APathThatIsNoModelsIs400Or404) {
  Start(Says("x"));

  for (const char* path : {"/v1/models/%zz", "/v1/models/a%2", "/v1/responses/%", "/v1/models/%"}) {
    EXPECT_EQ(Get(path).status, 400) << path;
  }
  EXPECT_EQ(Get("/v1/models/").status, 404);
  EXPECT_EQ(Get("/v1/models/%00").status, 404);
  EXPECT_EQ(Get("/v1/models/pocket").status, 200);
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses",
                           "/v1/messages", "/tokenize", "/detokenize"}) {
    const Json body = {{"model", ""},
                       {"prompt", "a"},
                       {"messages", {{{"role", "user"}, {"content", "a"}}}},
                       {"max_tokens", 1},
                       {"tokens", {65}}};
    Json asked = body;
    if (std::string_view(path) == "/v1/responses") asked["input"] = "a", asked.erase("prompt");
    EXPECT_EQ(Post(path, asked).status, 404) << path;
    asked.erase("model");
    EXPECT_EQ(Post(path, asked).status, 200) << path;
  }
}

TEST_F(ServerDoorTest, WhereTheModelLiesIsNotTold) {
  ServerConfig config = DefaultConfig();
  config.model_names = {"/secret/place/Kimi-K2/"};
  Start(Says("x"), config);

  const Answer list = Get("/v1/models"), one = Get("/v1/models/%2Fsecret%2Fplace%2FKimi-K2%2F");
  const Answer asked = Chat({{"model", "/secret/place/Kimi-K2/"}});
  const Answer wrong = Chat({{"model", "/secret"}});

  EXPECT_EQ(list.json()["data"][0]["id"], "Kimi-K2");
  EXPECT_EQ(one.json()["id"], "Kimi-K2");
  EXPECT_EQ(asked.json()["model"], "Kimi-K2");
  EXPECT_EQ(wrong.status, 404);
  EXPECT_EQ(Chat({{"model", "Kimi-K2"}}).status, 200);
  for (const Answer& answer : {list, one, asked, Get("/metrics")}) {
    EXPECT_THAT(answer.body, Not(HasSubstr("/secret")));
  }
}

TEST_F(ServerDoorTest, ARootPathIsTakenOff) {
  ServerConfig config = DefaultConfig();
  config.root_path = "/behind/proxy";
  Start(Says("x"), config);

  EXPECT_EQ(Get("/behind/proxy/v1/models").status, 200);
  EXPECT_EQ(Get("/v1/models").status, 200);
  EXPECT_EQ(Get("/behind/proxyv1/models").status, 404);
}

TEST_F(ServerDoorTest, BodiesMustBeJsonObjects) {
  Start(Says("x"));
  const auto post = [&](const std::string& type, const std::string& body) {
    return Send({.method = "POST",
                 .target = "/v1/completions",
                 .headers = {{"content-type", type}},
                 .body = body});
  };
  const std::string good = R"({"prompt":"a"})";

  EXPECT_EQ(post("application/json", good).status, 200);
  EXPECT_EQ(post("Application/JSON; charset=utf-8", good).status, 200);
  for (const char* type :
       {"text/plain", "application/x-www-form-urlencoded", "application/jsonx"}) {
    const Answer answer = post(type, good);
    EXPECT_EQ(answer.status, 400) << type;
    EXPECT_THAT(answer.body, HasSubstr("application/json"));
  }
  for (const char* body :
       {"", "{", "[]", "1", "null", R"({"prompt":"a"} x)", R"({"prompt":"a","prompt":"b"})",
        R"({"temperature":1e999})", "{\"prompt\":\"\xff\"}"}) {
    const Answer answer = post("application/json", body);
    EXPECT_EQ(answer.status, 400) << body;
    EXPECT_EQ(answer.error()["type"], "BadRequestError") << body;
  }
  std::string deep;
  for (int i = 0; i < 100000; ++i) deep += R"({"a":)";
  EXPECT_EQ(post("application/json", deep).status, 400);
}

TEST_F(ServerDoorTest, AnUnknownModelIsNotFound) {
  Start(Says("x"));

  const Answer answer = Chat({{"model", "gpt-9"}});

  EXPECT_EQ(answer.status, 404);
  EXPECT_EQ(answer.error()["type"], "NotFoundError");
  EXPECT_EQ(answer.error()["message"], "The model `gpt-9` does not exist.");
  EXPECT_EQ(answer.error()["param"], "model");
  EXPECT_EQ(answer.error()["code"], 404);
  EXPECT_EQ(Chat({{"model", "also-pocket"}}).json()["model"], "pocket");
}

TEST_F(ServerDoorTest, ModelsAreListed) {
  Start(Says("x"));

  const Json list = Get("/v1/models").json();

  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 2u);
  EXPECT_EQ(list["data"][1]["id"], "also-pocket");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["root"], "pocket");
  EXPECT_EQ(list["data"][0]["max_model_len"], test::kTestModelLength);
}

TEST_F(ServerDoorTest, RequestIdsAreEchoedAndNeverTrusted) {
  ServerConfig config = DefaultConfig();
  config.request_id_headers = true;
  Start(Says("x"), config);
  const Json body = {{"prompt", "a"}, {"request_id", "from-body"}};

  const Answer header = Post("/v1/completions", body, {{"x-request-id", "from-header"}});
  const Answer plain = Post("/v1/completions", body);
  const Answer bad =
      Post("/v1/completions", {{"prompt", "a"}}, {{"x-request-id", std::string(65, 'x')}});

  EXPECT_EQ(header.json()["id"], "cmpl-from-header");
  EXPECT_EQ(header.Header("x-request-id"), "from-header");
  EXPECT_EQ(plain.json()["id"], "cmpl-from-body");
  EXPECT_EQ(bad.json()["id"].get<std::string>().size(), std::string("cmpl-").size() + 32);
  EXPECT_EQ(bad.Header("x-request-id").size(), 32u);
  // The same id twice at once is two requests.
  std::set<RequestId> ids;
  for (const Request& request : engine_->submitted()) ids.insert(request.id);
  EXPECT_EQ(ids.size(), 3u);
}

TEST_F(ServerDoorTest, EveryAnswerIsCountedUnderItsRoute) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"key"};
  Start(Says("x"), config);
  const HttpHeaders key = {{"authorization", "Bearer key"}};
  Post("/v1/completions", {{"prompt", "a"}}, key);
  Post("/v1/completions", {{"prompt", "a"}, {"stream", true}}, key);
  Post("/v1/completions", {{"prompt", 1}}, key);
  Post("/v1/completions", {{"prompt", "a"}});
  Get("/no/such/path", key);
  Get("/health");
  Get("/version");

  const std::string text = Get("/metrics").body;

  const auto count = [](const char* handler, const char* method, const char* status, int n) {
    return std::string("http_requests_total{handler=\"") + handler + "\",method=\"" + method +
           "\",status=\"" + status + "\"} " + std::to_string(n) + "\n";
  };
  EXPECT_THAT(text, HasSubstr(count("/v1/completions", "POST", "2xx", 2)));
  EXPECT_THAT(text, HasSubstr(count("/v1/completions", "POST", "4xx", 2)));
  EXPECT_THAT(text, HasSubstr(count("none", "GET", "4xx", 1)));
  EXPECT_THAT(text, Not(HasSubstr("/no/such/path")));
  EXPECT_THAT(text, Not(HasSubstr("handler=\"/health\"")));
  EXPECT_THAT(text, Not(HasSubstr("handler=\"/metrics\"")));
  EXPECT_THAT(text, HasSubstr("http_request_duration_seconds_count{handler=\"/v1/completions\","
                              "method=\"POST\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("http_response_size_bytes_count{handler=\"/v1/completions\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("baltoro:requests_rejected_total{reason=\"invalid\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baltoro:requests_rejected_total{reason=\"unauthorized\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("baltoro:requests_rejected_total{reason=\"not_found\"} 1\n"));
}

TEST_F(ServerDoorTest, LimitsOfHttpAreAnsweredInTheSameForm) {
  ServerConfig config = DefaultConfig();
  config.http.limits.body_bytes = 1000;
  Start(Says("x"), config);

  const Answer fits = Complete({{"prompt", std::string(1000 - 13, 'a')}, {"max_tokens", 1}});
  const Answer answer = Complete({{"prompt", std::string(1001, 'a')}});

  EXPECT_NE(fits.status, 0);
  EXPECT_EQ(answer.status, 413);
  EXPECT_EQ(answer.error()["code"], 413);
  EXPECT_THAT(Get("/metrics").body, HasSubstr("baltoro:requests_rejected_total{reason=\"http\"}"));
}

TEST_F(ServerDoorTest, LargeBodiesArePreparedElsewhereAndBounded) {
  ServerConfig config = DefaultConfig();
  config.preparing = {.threads = 1, .jobs = 1, .bytes = 1 << 30};
  Start(Says("x"), config);
  // Long enough for the worker to be busy while others come.
  const std::string big = Json{{"prompt", std::string(1 << 20, 'a')}}.dump();
  const Json long_prompt = {{"prompt", std::string(40000, 'a')}, {"max_tokens", 1}};

  std::vector<Answer> answers(8);
  {
    std::vector<std::jthread> clients;
    for (Answer& answer : answers) {
      clients.emplace_back(
          [&] { answer = Send({.method = "POST", .target = "/tokenize", .body = big}); });
    }
  }
  const Answer after = Post("/tokenize", long_prompt);

  size_t served = 0;
  size_t refused = 0;
  for (const Answer& answer : answers) {
    served += answer.status == 200;
    refused += answer.status == 429 && answer.Header("retry-after") == "1";
  }
  EXPECT_EQ(served + refused, answers.size());
  EXPECT_GE(served, 1u);
  EXPECT_GE(refused, 1u);
  EXPECT_EQ(after.status, 200);
}

TEST_F(ServerDoorTest, AnEngineMayBeTakenAwayUnderLoad) {
  Start(Says("some words to say"));
  std::atomic<bool> stop = false;
  std::vector<std::jthread> clients;
  std::atomic<int> served = 0;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&, i] {
      while (!stop) {
        const Answer answer = Complete({{"prompt", "a"}, {"stream", i % 2 == 0}, {"n", 2}});
        EXPECT_TRUE(answer.status == 200 || answer.status == 503) << answer.status;
        served += answer.status == 200;
      }
    });
  }
  for (int i = 0; i < 50; ++i) {
    server_->SetEngine(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    server_->SetEngine(engine_.get());
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
  }
  stop = true;
  clients.clear();

  EXPECT_GT(served, 0);
}

TEST_F(ServerDoorTest, ATakenPortIsAnErrorAndNothingElse) {
  Start(Says("x"));
  ServerConfig config = DefaultConfig();
  config.http.port = server_->port();

  const auto second = Server::Listen(config, nullptr, nullptr);

  ASSERT_FALSE(second.ok());
  EXPECT_THAT(second.status().message(), HasSubstr(std::to_string(server_->port())));
  EXPECT_EQ(Get("/health").status, 200);
}

TEST_F(ServerDoorTest, RoutesAreListedForTheLog) {
  Start(Says("x"));

  EXPECT_THAT(server_->RouteList(), HasSubstr("Route: /v1/chat/completions, Methods: POST\n"));
}

TEST_F(ServerDoorTest, EveryRouteIsOnThePageAndNoOther) {
  Start(Says("x"), WithAllRoutes());
  std::set<std::string> routes, page;
  std::istringstream lines(server_->RouteList());
  std::string word, path, method;
  while (lines >> word >> path >> word >> method) {
    path.pop_back();  // the comma
    routes.insert(method + " " + path);
  }
  EXPECT_TRUE(routes.contains("POST /v1/chat/completions"));
  const std::string text = ReadFile("docs/api.md").value();
  std::istringstream table(text.substr(0, text.find("\n## ")));
  for (std::string code; std::getline(table, code, '`');) {
    if (code.find(" /") != std::string::npos && code.find('\n') == std::string::npos &&
        std::isupper(static_cast<unsigned char>(code.front()))) {
      page.insert(code);
    }
  }
  EXPECT_EQ(page, routes);
}

}  // namespace
}  // namespace baltoro
