#pragma once

// W3C Trace Context: which trace a request is a part of, so that its span and its lines in the log
// can be found from there. Any thread.

#include <string>
#include <string_view>

namespace baltoro {

struct TraceContext {
  std::string trace_id = {};   // 32 lower-case hexadecimal digits; "": there is no trace yet
  std::string parent_id = {};  // 16 of them: the span that made the request
  std::string state = {};      // `tracestate`, as it was sent
  bool sampled = true;         // false: whoever sent it records nothing, and neither do others
};

// From the two headers. Where `traceparent` is not of the standard's form the request counts as one
// without a trace, and `tracestate` is not looked at; a malformed `tracestate` is left out alone.
TraceContext ReadTraceContext(std::string_view traceparent, std::string_view tracestate);

}  // namespace baltoro
