// The page at "/" and /docs as the server gives them: who gets which, with which headers, and what
// they tell without a key. What they do in a browser is in tests/e2e/test_page.py.

#include <gmock/gmock.h>

#include <algorithm>

#include "server/docs_page.h"
#include "server/page_files.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;
using ::testing::HasSubstr;
using ::testing::Not;

const HttpHeaders kBrowser = {{"accept", "text/html,application/xhtml+xml,*/*;q=0.8"}};

class PageTest : public test::ServerFixture {
 protected:
  static ServerConfig WithPage(std::optional<bool> page) {
    ServerConfig config = DefaultConfig();
    config.page = page;
    return config;
  }
};

TEST_F(PageTest, ABrowserGetsThePageAndOthersALine) {
  Start(Says("x"));

  const Answer page = Get("/", kBrowser), text = Get("/");

  EXPECT_EQ(page.status, 200);
  EXPECT_EQ(page.Header("content-type"), "text/html; charset=utf-8");
  EXPECT_EQ(page.Header("vary"), "Accept");
  EXPECT_THAT(page.body, HasSubstr("<!DOCTYPE html>"));
  EXPECT_EQ(text.Header("content-type"), "text/plain; charset=utf-8");
  EXPECT_THAT(text.body, HasSubstr("Baltoro 1.2.3\n"));
  EXPECT_THAT(text.body, HasSubstr("open this address in a browser"));
  EXPECT_EQ(Send({.method = "POST", .target = "/"}).status, 405);
}

TEST_F(PageTest, EveryFileThatThePageNamesIsThere) {
  Start(Says("x"));
  const std::string page = Get("/", kBrowser).body;
  int named = 0;
  for (size_t at = 0; (at = page.find("\"page/", at)) != std::string::npos; ++at) {
    const std::string file = page.substr(at + 1, page.find('"', at + 1) - at - 1);
    const Answer answer = Get("/" + file);
    EXPECT_EQ(answer.status, 200) << file;
    EXPECT_FALSE(answer.body.empty()) << file;
    ++named;
  }
  EXPECT_GE(named, 3);
  EXPECT_EQ(Get("/page/app.js").Header("content-type"), "text/javascript; charset=utf-8");
  EXPECT_EQ(Get("/page/other.js").status, 404);
  EXPECT_EQ(Get("/page/..%2Fserver.cc").status, 404);
}

TEST_F(PageTest, ItsHeadersLetNothingElseIn) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"secret"};  // with keys other answers have CORS headers for all
  Start(Says("x"), config);
  HttpHeaders browser = kBrowser;
  browser.emplace_back("origin", "https://elsewhere.example");
  for (const char* path : {"/", "/page/app.js", "/page/style.css", "/docs"}) {
    const Answer answer = Get(path, browser);
    const std::string policy(answer.Header("content-security-policy"));
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_THAT(policy, HasSubstr("default-src 'none'")) << path;
    EXPECT_THAT(policy, HasSubstr("frame-ancestors 'none'")) << path;
    EXPECT_THAT(policy, HasSubstr("require-trusted-types-for 'script'")) << path;
    EXPECT_THAT(policy, Not(HasSubstr("unsafe"))) << path;
    EXPECT_THAT(policy, Not(HasSubstr("*"))) << path;
    EXPECT_EQ(answer.Header("x-content-type-options"), "nosniff") << path;
    EXPECT_EQ(answer.Header("access-control-allow-origin"), "") << path;
  }
  EXPECT_EQ(Get("/v1/models", {{"origin", "https://elsewhere.example"}, {"x-api-key", "secret"}})
                .Header("access-control-allow-origin"),
            "*");
  // No script or style inside the page, which the policy would refuse.
  const std::string page(FindPageFile("index.html")->text);
  EXPECT_THAT(page, Not(HasSubstr("<style")));
  EXPECT_THAT(page, Not(HasSubstr(" style=")));
  EXPECT_THAT(page, Not(HasSubstr("onclick")));
  EXPECT_THAT(page, Not(HasSubstr("//")));
}

TEST_F(PageTest, WithoutAKeyItTellsNothingOfTheServer) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"secret"};
  config.plan = {{"model", "pocket"}};
  Start(Says("x"), config);

  const Answer page = Get("/", kBrowser), docs = Get("/docs", kBrowser);

  for (const Answer& answer : {page, docs, Get("/")}) {
    EXPECT_EQ(answer.status, 200);
    EXPECT_THAT(answer.body, Not(HasSubstr("pocket")));
    EXPECT_THAT(answer.body, Not(HasSubstr("secret")));
  }
  EXPECT_THAT(page.body, HasSubstr("data-keys=\"yes\""));
  EXPECT_EQ(Get("/server_info").status, 401);
  EXPECT_EQ(Get("/recent_errors").status, 401);
  EXPECT_EQ(Get("/server_info", {{"x-api-key", "secret"}}).json()["plan"]["model"], "pocket");
}

TEST_F(PageTest, OffItIsOffButForWhatDocsNeeds) {
  Start(Says("x"), WithPage(false));

  const Answer root = Get("/", kBrowser);

  EXPECT_EQ(root.Header("content-type"), "text/plain; charset=utf-8");
  EXPECT_THAT(root.body, HasSubstr("--page"));
  EXPECT_EQ(Get("/page/app.js").status, 404);
  EXPECT_EQ(Get("/page/style.css").status, 200);
  EXPECT_EQ(Get("/docs").status, 200);
}

TEST_F(PageTest, ItIsOnWhereOnlyThisMachineReachesTheServer) {
  Start(Says("x"));
  EXPECT_TRUE(server_->page_on());

  ServerConfig everywhere = DefaultConfig();
  everywhere.http.host = "";
  auto other = Server::Listen(everywhere, nullptr, nullptr);
  ASSERT_TRUE(other.ok());
  EXPECT_FALSE(other.value()->page_on());

  everywhere.page = true;
  other = Server::Listen(everywhere, nullptr, nullptr);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(other.value()->page_on());
}

TEST_F(PageTest, ServerInfoTellsWhatTheEngineFound) {
  ServerConfig config = DefaultConfig();
  config.model_names = {"/secret/place/Kimi-K2"};
  StartServer(config);
  const Json before = Get("/server_info").json();
  EXPECT_EQ(before["engine"], nullptr);
  EXPECT_EQ(before["plan"], nullptr);
  EXPECT_THAT(before["status"].get<std::string>(), HasSubstr("loading"));

  Start(Says("x"), config);
  const Json info = Get("/server_info").json();

  EXPECT_EQ(info["status"], "serving");
  EXPECT_EQ(info["models"], Json({"Kimi-K2"}));
  EXPECT_EQ(info["engine"]["max_model_len"], test::kTestModelLength);
  EXPECT_EQ(info["engine"]["kv_cache"]["tokens"], 4096);
}

TEST_F(PageTest, DocsListTheServersRoutes) {
  Start(Says("x"));
  const std::string page = Get("/docs", {{"host", "localhost:8123"}}).body;
  EXPECT_THAT(page, HasSubstr("URL=http://localhost:8123<"));
  EXPECT_THAT(Get("/docs", {{"host", "localhost:8124"}}).body, HasSubstr("localhost:8124"));
  EXPECT_THAT(Get("/docs", {{"host", "localhost\"<script>"}}).body, Not(HasSubstr("<script")));
  EXPECT_THAT(page, HasSubstr("<b>POST</b> <code>/v1/chat/completions</code>"));
  EXPECT_THAT(page, HasSubstr("&quot;$URL/v1/models/$MODEL&quot;"));
  EXPECT_THAT(page, HasSubstr("<code>max_completion_tokens</code>"));
  EXPECT_THAT(page, Not(HasSubstr("Bearer")));
  const auto routes = server_->RouteList();
  size_t sections = 0;
  for (size_t at = 0; (at = page.find("<section>", at)) != std::string::npos; ++at) ++sections;
  EXPECT_EQ(sections, static_cast<size_t>(std::ranges::count(routes, '\n')));
}

TEST(DocsPageTest, WhatAClientSendsIsNoMarkup) {
  const std::string page = DocsPage({.version = "<1>", .address = "http://a\"><script>"});
  EXPECT_THAT(page, Not(HasSubstr("<script")));
  EXPECT_THAT(page, Not(HasSubstr("<1>")));
}

}  // namespace
}  // namespace baltoro
