#include "server/origin_policy.h"

#include <gtest/gtest.h>

#include <utility>

namespace baltoro {
namespace {

// The status of the refusal; 0: none.
int Status(const OriginPolicy& policy, std::string_view host, std::string_view origin = "") {
  HttpRequest request;
  if (!host.empty()) request.headers.emplace_back("host", host);
  if (!origin.empty()) request.headers.emplace_back("origin", origin);
  const auto error = policy.Check(request);
  return error ? error->status : 0;
}

CorsConfig Named(std::vector<std::string> origins) {
  CorsConfig cors;
  cors.origins = std::move(origins);
  return cors;
}

std::string AllowedOrigin(const OriginPolicy& policy, std::string_view origin) {
  HttpRequest request;
  request.headers.emplace_back("origin", origin);
  return std::string(FindHeader(policy.Headers(request), "access-control-allow-origin"));
}

TEST(OriginPolicyTest, OnLoopbackWithoutKeysOnlyThisMachinesNamesAndPages) {
  for (const char* listening : {"127.0.0.1", "127.0.0.2", "localhost", "::1"}) {
    const OriginPolicy policy({}, /*has_keys=*/false, listening, /*on_loopback=*/true);
    EXPECT_EQ(Status(policy, ""), 0);  // HTTP/1.0
    EXPECT_EQ(Status(policy, "localhost:8000"), 0);
    EXPECT_EQ(Status(policy, "[::1]:9", "http://localhost:3000"), 0);
    EXPECT_EQ(Status(policy, "127.0.0.9", "https://127.0.0.1"), 0);
    EXPECT_EQ(Status(policy, "evil.example"), 403);
    EXPECT_EQ(Status(policy, "evil.example:8000"), 403);
    EXPECT_EQ(Status(policy, "localhost.evil.example"), 403);
    EXPECT_EQ(Status(policy, "localhost", "https://evil.example"), 403);
    EXPECT_EQ(Status(policy, "localhost", "https://localhost.evil.example"), 403);
    EXPECT_EQ(Status(policy, "localhost", "null"), 403);
    EXPECT_EQ(Status(policy, "localhost", "https://localhost@evil.example"), 403);
    EXPECT_EQ(AllowedOrigin(policy, "http://localhost:3000"), "");
  }
}

// Debian gives a machine's own name 127.0.1.1.
TEST(OriginPolicyTest, ANameThatLeadsToALoopbackAddressIsOneMore) {
  const OriginPolicy policy({}, false, "MyMachine", /*on_loopback=*/true);

  EXPECT_EQ(Status(policy, "mymachine:8000"), 0);
  EXPECT_EQ(Status(policy, "localhost"), 0);
  EXPECT_EQ(Status(policy, "evil.example"), 403);
  EXPECT_EQ(Status(policy, "mymachine", "https://evil.example"), 403);
}

TEST(OriginPolicyTest, NamedOriginsMayAskAndRead) {
  const OriginPolicy policy(Named({"https://Chat.example:8443"}), false, "127.0.0.1", true);

  EXPECT_EQ(Status(policy, "localhost", "https://Chat.example:8443"), 0);
  EXPECT_EQ(Status(policy, "chat.example:8443"), 0);  // a proxy that hands the name on
  EXPECT_EQ(Status(policy, "localhost", "https://other.example"), 403);
  EXPECT_EQ(Status(policy, "other.example"), 403);
  EXPECT_EQ(AllowedOrigin(policy, "https://Chat.example:8443"), "https://Chat.example:8443");
  EXPECT_EQ(AllowedOrigin(policy, "https://other.example"), "");
}

TEST(OriginPolicyTest, TheStarLiftsTheCheck) {
  const OriginPolicy policy(Named({"*"}), false, "127.0.0.1", true);

  EXPECT_EQ(Status(policy, "evil.example", "https://evil.example"), 0);
  EXPECT_EQ(AllowedOrigin(policy, "https://evil.example"), "*");
}

TEST(OriginPolicyTest, NoOriginsGivenIsNotTheSameAsAnEmptyList) {
  EXPECT_EQ(AllowedOrigin(OriginPolicy({}, /*has_keys=*/true, "127.0.0.1", true), "https://a"),
            "*");
  EXPECT_EQ(AllowedOrigin(OriginPolicy(Named({}), true, "127.0.0.1", true), "https://a"), "");
}

TEST(OriginPolicyTest, KeysOrAnotherAddressMakeTheCheckNeedless) {
  EXPECT_EQ(Status(OriginPolicy({}, /*has_keys=*/true, "127.0.0.1", true), "evil.example"), 0);
  for (const char* listening : {"", "0.0.0.0", "::", "10.0.0.1", "server.example"}) {
    const OriginPolicy policy({}, false, listening, /*on_loopback=*/false);
    EXPECT_EQ(Status(policy, "evil.example", "https://evil.example"), 0) << listening;
    EXPECT_EQ(AllowedOrigin(policy, "https://evil.example"), "") << listening;
  }
}

}  // namespace
}  // namespace baltoro
