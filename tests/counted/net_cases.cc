#include <fmt/format.h>

#include "counted/work_case.h"
#include "net/http_parser.h"
#include "net/sse.h"

namespace baltoro::work {
namespace {

constexpr char kHead[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n";

// The limits would end most of these inputs early.
HttpLimits Wide() {
  HttpLimits limits;
  limits.header_block_bytes = limits.header_count = limits.header_bytes = size_t{1} << 30;
  return limits;
}

// In pieces of `piece` bytes; 0: in one.
Work Parse(std::string message, size_t piece) {
  return [message, piece] {
    HttpParser parser(HttpParser::Kind::kRequest, Wide());
    for (size_t at = 0; at < message.size();) {
      const size_t end = piece == 0 ? message.size() : std::min(message.size(), at + piece);
      while (at < end) at += parser.Feed(std::string_view(message).substr(at, end - at));
    }
    BT_CHECK(parser.done());
    const HttpRequest request = parser.TakeRequest();
    BT_CHECK(request.Header("last") == "yes");
  };
}

std::string ManyHeaders(size_t count) {
  std::string out = kHead;
  for (size_t i = 0; i < count; ++i) out += fmt::format("x-{}: value of it\r\n", i);
  return out + "last: yes\r\n\r\n";
}

std::string LongHeader(size_t bytes) {
  return kHead + ("long: " + Times(bytes, "a")) + "\r\nlast: yes\r\n\r\n";
}

std::string SmallChunks(size_t count) {
  return kHead + ("last: yes\r\ntransfer-encoding: chunked\r\n\r\n" + Times(count, "1\r\nx\r\n")) +
         "0\r\n\r\n";
}

std::string Body(size_t bytes) {
  return kHead + fmt::format("last: yes\r\ncontent-length: {}\r\n\r\n", bytes) + Times(bytes, "b");
}

Work WriteSse(size_t size) {
  return [size] {
    std::string out;
    for (size_t i = 0; i < size; ++i) AppendSseData(out, R"({"choices":[{"delta":"a word"}]})");
    AppendSseEvent(out, "lines", Times(size, "line\r\n"));
    BT_CHECK(out.ends_with("\n\n"));
  };
}

// Events of a line each, and one of as many lines, in pieces of `piece` bytes.
Work ReadSse(size_t size, size_t piece) {
  return
      [text = Times(size, "data: a word\n\n") + Times(size, "data: a line\n") + "\n", size, piece] {
        SseParser parser;
        size_t events = 0;
        for (size_t at = 0; at < text.size(); at += piece) {
          parser.Feed(std::string_view(text).substr(at, piece), [&](const SseEvent&) {
            ++events;
            return true;
          });
        }
        BT_CHECK(events == size + 1);
      };
}

}  // namespace

std::vector<WorkCase> NetCases() {
  return {
      {"http_headers", 500, [](size_t n) { return Parse(ManyHeaders(n), 0); }},
      {"http_long_header", 100'000, [](size_t n) { return Parse(LongHeader(n), 0); }},
      {"http_chunks", 2000, [](size_t n) { return Parse(SmallChunks(n), 0); }},
      {"http_bytes_of_headers", 200, [](size_t n) { return Parse(ManyHeaders(n), 1); }},
      {"http_bytes_of_one_header", 2000, [](size_t n) { return Parse(LongHeader(n), 1); }},
      {"http_bytes_of_chunks", 500, [](size_t n) { return Parse(SmallChunks(n), 1); }},
      {"http_bytes_of_body", 5000, [](size_t n) { return Parse(Body(n), 1); }},
      {"sse_write", 1000, WriteSse},
      {"sse_read", 500, [](size_t n) { return ReadSse(n, size_t{1} << 30); }},
      {"sse_read_bytes", 200, [](size_t n) { return ReadSse(n, 1); }},
  };
}

}  // namespace baltoro::work
