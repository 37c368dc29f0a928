#include "flags/trace_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baltoro {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;

constexpr const char* kUrl = "http://collector:4318/v1/traces";

struct Found {
  TraceOptions options;
  std::string error;
  std::vector<std::string> notices;
};

Found Find(const std::string& flag, const Environment& environment) {
  Found found;
  Result<TraceOptions> options = FindTraceOptions(flag, environment, found.notices);
  if (options.ok()) {
    found.options = std::move(options).value();
  } else {
    found.error = options.status().message();
  }
  return found;
}

TEST(TraceOptionsTest, TheFlagGoesBeforeTheEnvironmentAndAWholeUrlBeforeABase) {
  const Environment both = {{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://a/x"},
                            {"OTEL_EXPORTER_OTLP_ENDPOINT", "https://b:4318/"}};

  EXPECT_EQ(Find(kUrl, both).options.endpoint, kUrl);
  EXPECT_EQ(Find("", both).options.endpoint, "http://a/x");
  EXPECT_EQ(Find("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "https://b:4318/"}}).options.endpoint,
            "https://b:4318/v1/traces");
  EXPECT_EQ(Find("", {}).options.endpoint, "");
}

TEST(TraceOptionsTest, GrpcAndHalfUrlsAreRefusedWithWhatToGive) {
  for (const char* url :
       {"grpc://c:4317", "grpc://c/v1", "http://c:4317", "http://c:4317/v1/traces"}) {
    EXPECT_THAT(Find(url, {}).error, HasSubstr("http://HOST:4318/v1/traces")) << url;
    EXPECT_THAT(Find(url, {}).error, HasSubstr("gRPC is not spoken")) << url;
  }
  EXPECT_THAT(Find(kUrl, {{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"}}).error,
              HasSubstr("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/json"));
  EXPECT_THAT(Find("http://c:4318", {}).error, HasSubstr("with its path"));
  EXPECT_THAT(Find("c:4318/v1/traces", {}).error, HasSubstr("a whole URL"));
  EXPECT_THAT(Find("ftp://c/v1/traces", {}).error, HasSubstr("a whole URL"));
  for (const char* const url : {"http://me:word@c/v1/traces", "http://c/v1/traces?key=word"}) {
    EXPECT_THAT(Find(url, {}).error, HasSubstr("OTLP_HEADERS"));
    EXPECT_THAT(Find(url, {}).error, Not(HasSubstr("word@")));
    EXPECT_THAT(Find(url, {}).error, Not(HasSubstr("key=word")));
    // Switched off too, as the command line is printed.
    const std::string off = Find(url, {{"OTEL_SDK_DISABLED", "true"}}).error;
    EXPECT_THAT(off, HasSubstr("OTLP_HEADERS"));
    EXPECT_THAT(off, Not(HasSubstr("word@")));
    EXPECT_THAT(off, Not(HasSubstr("=word")));
  }
  EXPECT_EQ(Find("http://c/", {}).error, "");
}

TEST(TraceOptionsTest, AnEnvironmentThatIsMeantForOthersStopsNothing) {
  const Found found = Find("", {{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4317"}});

  EXPECT_EQ(found.error + found.options.endpoint, "");
  EXPECT_THAT(found.notices,
              ElementsAre(HasSubstr("OTEL_EXPORTER_OTLP_ENDPOINT: no traces: gRPC")));
}

TEST(TraceOptionsTest, OpenTelemetrysSwitchesTurnItOff) {
  EXPECT_EQ(Find(kUrl, {{"OTEL_SDK_DISABLED", "true"}}).options.endpoint, "");
  EXPECT_THAT(Find(kUrl, {{"OTEL_TRACES_EXPORTER", "none"}}).notices,
              ElementsAre(HasSubstr("no traces: OTEL_TRACES_EXPORTER=none")));
}

TEST(TraceOptionsTest, WhatTheServerIsCalledAndHowTheCollectorIsReached) {
  const Found plain = Find(kUrl, {});
  const Found found = Find(kUrl, {{"OTEL_SERVICE_NAME", "k2"},
                                  {"OTEL_RESOURCE_ATTRIBUTES", "zone=a%20b, service.name=other,"},
                                  {"OTEL_EXPORTER_OTLP_HEADERS", "x-key=a%3Db,y=2"},
                                  {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"},
                                  {"OTEL_BSP_SCHEDULE_DELAY", "1"}});

  EXPECT_THAT(plain.options.resource.front(), Pair("service.name", "baltoro"));
  EXPECT_THAT(plain.notices, IsEmpty());
  EXPECT_THAT(found.options.resource, ElementsAre(Pair("service.name", "k2"), Pair("zone", "a b"),
                                                  Pair("service.version", found.options.version)));
  EXPECT_THAT(found.options.headers, ElementsAre("x-key: a=b", "y: 2"));
  EXPECT_EQ(found.options.ca_file, "/ca.pem");
  EXPECT_THAT(found.notices, ElementsAre(HasSubstr("OTEL_BSP_SCHEDULE_DELAY: not read")));
}

TEST(TraceOptionsTest, WrongPairsAreRefusedWithoutTheirValues) {
  for (const char* pairs : {"secret", "=secret", "a=secret%0d%0aevil: 1", "a=secret%"}) {
    const Found found = Find(kUrl, {{"OTEL_EXPORTER_OTLP_HEADERS", pairs}});
    EXPECT_THAT(found.error, HasSubstr("OTEL_EXPORTER_OTLP_HEADERS: expected key=value")) << pairs;
    EXPECT_EQ(found.error.find("secret"), std::string::npos) << pairs;
  }
}

}  // namespace
}  // namespace baltoro
