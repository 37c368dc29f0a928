#pragma once

// Requests of one thread to one server, by libcurl: plain http and TLS, a connection that stays
// open, a time limit for each request. Redirects are not followed, so a key goes nowhere else.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace baltoro {

struct WebOptions {
  std::string url;           // what stands before every path
  std::string api_key = {};  // empty: none
  std::string ca_file = {};  // empty: the system's
  Seconds timeout = 600;     // of a whole request
  std::string user_agent = "baltoro";
  std::vector<std::string> headers = {};      // "Name: value", of every request
  size_t body_bytes_max = size_t{256} << 20;  // of an answer that is not streamed
  const std::atomic<bool>* stop = nullptr;    // ends whatever runs
};

struct WebAnswer {
  int status = 0;
  std::string body;         // of a streamed answer of status 200 empty
  double retry_after = -1;  // seconds; -1: not told
};

class WebClient {
 public:
  // What came of the body of an answer of status 200, and when, by MonotonicClock.
  using OnBody = std::function<void(std::string_view bytes, Seconds at)>;

  static Result<WebClient> Create(WebOptions options);
  WebClient(WebClient&&) noexcept;
  WebClient& operator=(WebClient&&) noexcept;
  ~WebClient();

  // A POST of JSON, or a GET where `body` is empty. An error is one of the connection or of time
  // (kUnavailable).
  Result<WebAnswer> Send(const std::string& path, const std::string& body, const OnBody& on_body);

 private:
  struct State;
  explicit WebClient(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
