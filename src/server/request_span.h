#pragma once

// What a trace tells of one generating request, and where such spans go. The form in which they
// leave the process is the sink's business.

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "server/trace_context.h"

namespace baltoro {

// Moments are of the server's clock; 0: it was not reached.
struct RequestSpan {
  TraceContext context;  // the parent, where there is one
  std::string request_id, model;
  int64_t start_unix_ns = 0;
  Seconds start = 0;      // the body was there; the same moment as start_unix_ns
  Seconds submitted = 0;  // the prompt was ready
  Seconds scheduled = 0, first_token = 0, last_token = 0;
  Seconds end = 0;

  int32_t n = 1;  // choices of each prompt
  int64_t max_tokens = 0;
  double temperature = 0, top_p = 0;
  int64_t prompt_tokens = 0, completion_tokens = 0;  // of all choices
  std::vector<std::string> finish_reasons;           // of each choice; "abort": the client went
  // Of a request that ended with an error.
  int http_status = 200;
  bool server_failed = false;  // it was not the client's error
  std::string error_type, error_message;
};

struct SpanCounts {
  uint64_t exported = 0;
  uint64_t queue_full = 0, undelivered = 0;  // dropped
};

class SpanSink {
 public:
  virtual ~SpanSink() = default;
  // Any thread; never waits.
  virtual void Add(RequestSpan span) = 0;
  virtual SpanCounts counts() const = 0;
};

}  // namespace baltoro
