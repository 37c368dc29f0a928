#pragma once

// Which web pages may use the server: a browser sends requests for any page that it shows. A server
// without keys on a loopback address is open to everybody on the machine, and must not be to the
// pages that they visit (docs/adr/0014). Any thread.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "net/http_message.h"
#include "server/api_error.h"

namespace baltoro {

struct CorsConfig {
  // Origins that may read answers, "*" for all. Not given: all where keys are asked for, else none.
  std::optional<std::vector<std::string>> origins = std::nullopt;
  std::vector<std::string> methods = {"*"};
  std::vector<std::string> headers = {"*"};
  bool credentials = false;
};

class OriginPolicy {
 public:
  // `host`: the name or address that the server was told to listen on, empty: none.
  // `on_loopback`: whether that is one of this machine alone, whatever its name.
  OriginPolicy(CorsConfig cors, bool has_keys, std::string_view host, bool on_loopback);

  // Why a request is refused that a stranger's page may have made; nothing: it is not.
  std::optional<ApiError> Check(const HttpRequest& request) const;
  // What tells a browser that the page may read the answer.
  HttpHeaders Headers(const HttpRequest& request) const;

 private:
  bool KnowsHost(std::string_view host) const;

  CorsConfig cors_;
  std::vector<std::string> origins_;
  bool any_origin_ = false;
  bool checks_ = false;
  std::vector<std::string> hosts_;  // in lower case; beside those of loopback
};

}  // namespace baltoro
