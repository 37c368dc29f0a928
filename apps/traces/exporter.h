#pragma once

// Sends spans to a collector of traces, by OTLP over HTTP, on a thread of its own: nobody who adds
// one ever waits. What the bounded queue has no room for is dropped and counted; so is what the
// collector does not take.

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/status.h"
#include "client/web.h"
#include "flags/trace_options.h"
#include "server/request_span.h"

namespace baltoro {

class TraceExporter final : public SpanSink {
 public:
  // How much longer the end of a process may take: the time that is left to the collector, and
  // that which a transfer takes to notice that it is over.
  static constexpr Seconds kFlushSeconds = 1, kStopSeconds = 2;

  // After StartHttp (pull/http_session.h). There must be an endpoint.
  static Result<std::unique_ptr<TraceExporter>> Start(TraceOptions options);
  // Flushes.
  ~TraceExporter() override;

  void Add(RequestSpan span) override;
  SpanCounts counts() const override;
  // Tries what is left once, for kFlushSeconds at most, and ends the thread. What is added later is
  // dropped. Of one thread.
  void Flush();

 private:
  TraceExporter(TraceOptions options, std::shared_ptr<std::atomic<bool>> abort, WebClient client);
  void Run();
  void Deliver(const std::vector<RequestSpan>& batch);
  void CountRefused(const WebAnswer& answer, size_t spans);
  void CountUndelivered(size_t spans, const std::string& why);
  void Tell(const std::string& why, bool last);

  const TraceOptions options_;
  const std::shared_ptr<std::atomic<bool>> abort_;  // the transfer under way is to end
  WebClient client_;                                // of the thread
  MonotonicClock clock_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<RequestSpan> queue_;
  SpanCounts counts_;
  bool stopping_ = false, ended_ = false;

  Seconds told_at_ = 0;  // of the newest line about drops; 0: there was none
  uint64_t told_ = 0;    // drops of which lines have told
  std::thread thread_;
};

}  // namespace baltoro
