#pragma once

// A blocking HTTP/1.1 client for tools: keep-alive, time limits, streamed answers, TLS. One
// connection, one request at a time; a client belongs to one thread.

#include <functional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "net/http_message.h"
#include "net/http_parser.h"
#include "net/socket.h"
#include "net/sse.h"
#include "net/tls.h"

namespace baltoro {

struct HttpClientOptions {
  std::string host = "127.0.0.1";  // name or address
  int port = 8000;
  std::string uds = {};  // path of a Unix socket; if set, host and port name no connection
  std::shared_ptr<const TlsContext> tls = {};  // null: plain HTTP
  Seconds connect_timeout = 5;
  Seconds idle_timeout = 300;  // no byte for so long, in either direction
  int stop_fd = -1;            // when it can be read, what waits ends with kInternal; -1: none
  HttpLimits limits = {.body_bytes = size_t{1} << 30};
};

struct HttpClientRequest {
  std::string method = "GET";
  std::string target = "/";
  HttpHeaders headers = {};  // without content-length and connection; host only if another is meant
  std::string body = {};     // with content-type application/json unless the headers name another
};

// The bytes of a request, its body included. kInvalidArgument where its line or a header holds a
// line break.
Result<std::string> SerializeRequest(const HttpClientRequest& request,
                                     const HttpClientOptions& options);

class HttpClient {
 public:
  explicit HttpClient(HttpClientOptions options) : options_(std::move(options)) {}

  // The whole answer, whatever its status; an error is one of the connection (kUnavailable) or of
  // the peer's HTTP (kInvalidArgument).
  Result<HttpResponse> Send(const HttpClientRequest& request);
  // A text/event-stream answer of status 200 goes to `on_event`, event by event, and comes back
  // with an empty body; false from `on_event` stops and closes the connection. Any other answer
  // comes back whole. A stream that ends before its last chunk is an error.
  Result<HttpResponse> Stream(const HttpClientRequest& request, const SseParser::OnEvent& on_event);
  // The next request makes a new connection.
  void Close() {
    tls_.reset();
    fd_.Close();
  }

 private:
  // Takes what has arrived of the body; false stops.
  using OnBody = std::function<bool(HttpParser&)>;
  Result<HttpResponse> Exchange(const HttpClientRequest& request, const OnBody& on_body);
  Result<HttpResponse> Receive(const HttpClientRequest& request, const OnBody& on_body, bool* any);
  Status Connect();
  Status ShakeHands();
  Status SendAll(std::string_view bytes);
  Result<size_t> ReceiveSome(char* buffer, size_t size);
  Status WaitFor(short poll_events);

  HttpClientOptions options_;
  UniqueFd fd_;
  std::unique_ptr<TlsSession> tls_;
};

}  // namespace baltoro
