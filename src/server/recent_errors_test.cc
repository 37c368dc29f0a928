#include "server/recent_errors.h"

#include <gtest/gtest.h>

#include "server/server_fixture.h"

namespace baltoro {
namespace {

using test::Answer;

TEST(RecentErrorsTest, KeepsTheNewestOfEachClientUpToABound) {
  RecentErrors errors;
  for (int i = 0; i < 200; ++i) {
    errors.Add({.client = i % 2 == 0 ? "even" : "odd", .error = BadRequest("", std::to_string(i))});
  }

  const auto even = errors.Of("even");

  EXPECT_EQ(even.size(), RecentErrors::kKept / 2);
  EXPECT_EQ(even.front().error.message, "198");
  EXPECT_EQ(even.back().error.message, "72");
  EXPECT_TRUE(errors.Of("").empty());
}

TEST(RecentErrorsTest, ALongMessageIsCutBetweenCharacters) {
  RecentErrors errors;
  std::string text(RecentErrors::kMessageBytes - 1, 'a');
  errors.Add({.client = "c", .error = BadRequest("", text + "\u00e9\u00e9")});
  EXPECT_EQ(errors.Of("c").front().error.message, text + "...");
}

class RecentErrorsRouteTest : public test::ServerFixture {};

TEST_F(RecentErrorsRouteTest, AClientFindsItsOwn) {
  ServerConfig config = DefaultConfig();
  config.api_keys = {"one", "two"};
  Start(Says("x"), config);
  const HttpHeaders one = {{"authorization", "Bearer one"}}, two = {{"x-api-key", "two"}};

  EXPECT_EQ(Post("/v1/completions", {{"prompt", "a"}, {"temperature", -1}}, one).status, 400);
  EXPECT_EQ(Get("/v1/nothing", one).status, 404);
  EXPECT_EQ(Get("/v1/models", {}).status, 401);

  const Json found = Get("/recent_errors", one).json()["errors"];
  ASSERT_EQ(found.size(), 2u) << found.dump();
  EXPECT_EQ(found[0]["status"], 404);
  EXPECT_EQ(found[0]["route"], "none");
  EXPECT_EQ(found[1]["route"], "/v1/completions");
  EXPECT_EQ(found[1]["param"], "temperature");
  EXPECT_GT(found[1]["time"], 1'700'000'000);
  EXPECT_EQ(Get("/recent_errors", two).json()["errors"], Json::array());
}

TEST_F(RecentErrorsRouteTest, AnErrorInsideAStreamIsAmongThem) {
  Start([](const Request&) {
    std::vector<TokenEvent> events = test::Play({{300}, {301}}, FinishReason::kError);
    events.back().Fail(Status(Code::kInternal, "it broke"));
    return events;
  });

  EXPECT_EQ(Complete({{"stream", true}}).status, 200);

  const Json found = Get("/recent_errors").json()["errors"];
  ASSERT_EQ(found.size(), 1u) << found.dump();
  EXPECT_EQ(found[0]["status"], 500);
  EXPECT_EQ(found[0]["streamed"], true);
  EXPECT_EQ(found[0]["message"], "it broke");
}

}  // namespace
}  // namespace baltoro
