#pragma once

// Spans in the JSON encoding of OTLP, the protocol of OpenTelemetry: an ExportTraceServiceRequest.
// Any thread.

#include <span>
#include <string>

#include "flags/trace_options.h"
#include "server/request_span.h"

namespace baltoro {

// A span `llm_request` for each request, with those of its parts below it: `prepare`, `queue`,
// `prefill` and `decode`, as far as the request came. Names of attributes are vLLM's. Ids of spans,
// and of traces that begin here, are drawn at random.
std::string OtlpJson(std::span<const RequestSpan> requests, const TraceOptions& options);

}  // namespace baltoro
