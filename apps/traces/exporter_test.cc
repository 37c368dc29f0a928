#include "traces/exporter.h"

#include <gtest/gtest.h>

#include "pull/http_session.h"

namespace baltoro {
namespace {

// What collectors take and refuse is tested from outside: tests/e2e/test_traces.py.
TEST(TraceExporterTest, WithoutACollectorTheQueueIsBoundedAndEveryDropIsCounted) {
  ASSERT_TRUE(StartHttp().ok());
  TraceOptions options;
  options.endpoint = "http://127.0.0.1:9/v1/traces";  // nobody listens
  const auto exporter = TraceExporter::Start(options).value();
  constexpr uint64_t kSpans = 5000;

  for (uint64_t i = 0; i < kSpans; ++i) exporter->Add({});
  const SpanCounts full = exporter->counts();
  exporter->Flush();
  const SpanCounts ended = exporter->counts();

  EXPECT_GE(full.queue_full, kSpans - 2048 - 256);  // but for a batch that is on its way
  EXPECT_EQ(ended.exported, 0U);
  EXPECT_EQ(ended.queue_full + ended.undelivered, kSpans);
  exporter->Add({});
  EXPECT_EQ(exporter->counts().queue_full, ended.queue_full + 1);  // after the end
}

}  // namespace
}  // namespace baltoro
