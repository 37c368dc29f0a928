#pragma once

// Requests of one thread to a hub, by libcurl: TLS, proxies of the environment, connections that
// stay open. Redirects are followed here and not by libcurl, because the token belongs to the hub's
// own scheme, host and port and goes nowhere else.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"

namespace baltoro {

struct HttpOptions {
  std::string endpoint;          // where the token may go: "https://huggingface.co"
  std::string token;             // empty: none
  bool token_as_cookie = false;  // ModelScope reads it there
  std::string ca_file;           // empty: the system's
  std::string user_agent;
  int stall_s = 60;                         // less than 1 KiB/s for as long ends a transfer
  const std::atomic<bool>* stop = nullptr;  // ends whatever runs
};

// What came before the body, of the last answer of a chain of redirects.
struct HttpHead {
  int status = 0;
  std::string etag = {};         // without quotes; empty for a weak one
  std::string linked_etag = {};  // X-Linked-Etag of any answer of the chain: the sum of an LFS file
  std::string content_range = {};
  int64_t content_length = -1;
  int64_t retry_after_s = -1;
  std::string error_code = {}, error_message = {};  // X-Error-Code, X-Error-Message
  std::string host = {};                            // who answered
  bool at_hub = true;                               // that is the endpoint itself
};

struct HttpRange {
  uint64_t begin = 0, end = 0;  // end excluded; empty: all, and no Range is asked for
};

struct HttpEnd {
  HttpHead head;
  std::string error_body;  // of an answer that is no 2xx, its beginning
  Status status;           // of the transfer alone: kUnavailable is worth another attempt
  bool refused = false;    // the sink said no; the status is OK then
};

class HttpSession {
 public:
  // Called with the bytes of a 2xx answer as they come; false ends the transfer.
  using Sink = std::function<bool(const HttpHead& head, std::string_view bytes)>;

  static Result<HttpSession> Create(HttpOptions options);
  HttpSession(HttpSession&&) noexcept;
  HttpSession& operator=(HttpSession&&) noexcept;
  ~HttpSession();

  HttpEnd Get(const std::string& url, const HttpRange& range, const Sink& sink);

 private:
  struct State;
  explicit HttpSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Once, before any thread is started.
Status StartHttp();

// Where systems keep the certificates of authorities: libcurl knows the place of the system that it
// was built for. Empty: in none of the places that are known.
std::string SystemCaFile();

// A part of a path or of a query in a URL: all but letters, digits and -._~ in hexadecimal. With
// `keep_slashes` those stay.
std::string UrlEncoded(std::string_view text, bool keep_slashes);

// Whether both have the same scheme, host and port.
bool IsSameOrigin(const std::string& a, const std::string& b);

}  // namespace baltoro
