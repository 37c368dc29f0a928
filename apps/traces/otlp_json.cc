#include "traces/otlp_json.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "base/json.h"

namespace baltoro {
namespace {

constexpr int kInternal = 1, kServer = 2;                                            // SpanKind
constexpr int kError = 2;                                                            // StatusCode
constexpr unsigned kSampled = 0x1, kParentIsKnown = 0x100, kParentIsRemote = 0x200;  // SpanFlags
constexpr size_t kReasonsMax = 128;
constexpr size_t kMessageBytesMax = 1024;

Json Text(std::string_view value) {
  return {{"stringValue", value}};
}

// 64-bit integers are text in JSON, as protobuf has it.
Json Number(int64_t value) {
  return {{"intValue", std::to_string(value)}};
}

Json Real(double value) {
  return {{"doubleValue", value}};
}

void Add(Json& attributes, std::string_view key, Json value) {
  attributes.push_back({{"key", key}, {"value", std::move(value)}});
}

class Ids {
 public:
  std::string Next(int words) {
    std::string out;
    while (out.find_first_not_of('0') == std::string::npos) {  // all zeros is no id
      out.clear();
      for (int i = 0; i < words; ++i) out += fmt::format("{:08x}", random_() & 0xFFFFFFFFu);
    }
    return out;
  }

 private:
  std::random_device random_;
};

// Of a moment of the server's clock.
std::string UnixNanoseconds(const RequestSpan& request, Seconds moment) {
  const auto since = static_cast<int64_t>((moment - request.start) * 1e9);
  return std::to_string(request.start_unix_ns + since);
}

Json Attributes(const RequestSpan& request) {
  Json out = Json::array();
  const Seconds begin = request.scheduled > 0 ? request.scheduled : request.submitted;
  Add(out, "gen_ai.request.id", Text(request.request_id));
  Add(out, "gen_ai.response.model", Text(request.model));
  Add(out, "gen_ai.request.n", Number(request.n));
  Add(out, "gen_ai.request.max_tokens", Number(request.max_tokens));
  Add(out, "gen_ai.request.temperature", Real(request.temperature));
  Add(out, "gen_ai.request.top_p", Real(request.top_p));
  Add(out, "gen_ai.usage.prompt_tokens", Number(request.prompt_tokens));
  Add(out, "gen_ai.usage.completion_tokens", Number(request.completion_tokens));
  Add(out, "gen_ai.latency.e2e", Real(request.end - request.start));
  if (request.scheduled > 0) {
    Add(out, "gen_ai.latency.time_in_queue", Real(request.scheduled - request.submitted));
  }
  if (request.first_token > 0) {
    Add(out, "gen_ai.latency.time_to_first_token", Real(request.first_token - request.start));
    Add(out, "gen_ai.latency.time_in_model_prefill", Real(request.first_token - begin));
    Add(out, "gen_ai.latency.time_in_model_decode", Real(request.last_token - request.first_token));
    Add(out, "gen_ai.latency.time_in_model_inference", Real(request.last_token - begin));
  }
  Json reasons = Json::array();
  for (size_t i = 0; i < std::min(request.finish_reasons.size(), kReasonsMax); ++i) {
    reasons.push_back(Text(request.finish_reasons[i]));
  }
  Add(out, "gen_ai.response.finish_reasons", {{"arrayValue", {{"values", reasons}}}});
  if (!request.error_type.empty()) {
    Add(out, "error.type", Text(request.error_type));
    Add(out, "http.response.status_code", Number(request.http_status));
  }
  return out;
}

// The request's span, and those of its parts.
void AppendSpans(const RequestSpan& request, Ids& ids, Json& spans) {
  const bool root = request.context.trace_id.empty();
  const std::string trace = root ? ids.Next(4) : request.context.trace_id;
  const std::string id = ids.Next(2);
  Json span = {{"traceId", trace},
               {"spanId", id},
               {"flags", kSampled | kParentIsKnown | (root ? 0 : kParentIsRemote)},
               {"name", "llm_request"},
               {"kind", kServer},
               {"startTimeUnixNano", UnixNanoseconds(request, request.start)},
               {"endTimeUnixNano", UnixNanoseconds(request, request.end)},
               {"attributes", Attributes(request)}};
  if (!root) span["parentSpanId"] = request.context.parent_id;
  if (!request.context.state.empty()) span["traceState"] = request.context.state;
  // What a client did wrong is no error of the server's span: so say the conventions of HTTP.
  if (request.server_failed) {
    span["status"] = {{"code", kError},
                      {"message", request.error_message.substr(0, kMessageBytesMax)}};
  }
  spans.push_back(std::move(span));

  const auto part = [&](const char* name, Seconds begin, Seconds end) {
    if (begin == 0 || end == 0) return;
    Json below = {{"traceId", trace},
                  {"spanId", ids.Next(2)},
                  {"parentSpanId", id},
                  {"flags", kSampled | kParentIsKnown},
                  {"name", name},
                  {"kind", kInternal},
                  {"startTimeUnixNano", UnixNanoseconds(request, begin)},
                  {"endTimeUnixNano", UnixNanoseconds(request, end)}};
    if (!request.context.state.empty()) below["traceState"] = request.context.state;
    spans.push_back(std::move(below));
  };
  part("prepare", request.start, request.submitted);
  part("queue", request.submitted, request.scheduled);
  part("prefill", request.scheduled, request.first_token);
  part("decode", request.first_token, request.last_token);
}

}  // namespace

std::string OtlpJson(std::span<const RequestSpan> requests, const TraceOptions& options) {
  Ids ids;
  Json spans = Json::array();
  for (const RequestSpan& request : requests) AppendSpans(request, ids, spans);
  Json resource = Json::array();
  for (const auto& [key, value] : options.resource) Add(resource, key, Text(value));
  Add(resource, "process.pid", Number(getpid()));
  const Json scope = {{"name", "baltoro"}, {"version", options.version}};
  const Json scoped = {{"scope", scope}, {"spans", std::move(spans)}};
  const Json whole = {{"resource", {{"attributes", resource}}},
                      {"scopeSpans", Json::array({scoped})}};
  return Json{{"resourceSpans", Json::array({whole})}}.dump(-1, ' ', false,
                                                            Json::error_handler_t::replace);
}

}  // namespace baltoro
