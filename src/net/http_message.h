#pragma once

// The two nouns of HTTP as plain structs. They carry bytes and know no meaning.

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baltoro {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// The first value of header `lower_case_name`, or empty. Names are compared without case.
std::string_view FindHeader(const HttpHeaders& headers, std::string_view lower_case_name);

// Equal but for ASCII case.
bool EqualsIgnoreCase(std::string_view a, std::string_view b);

struct HttpRequest {
  std::string method = {};   // as sent; methods are case-sensitive
  std::string target = {};   // the whole request target, as sent
  std::string path = {};     // up to '?', not percent-decoded; "*" for OPTIONS *
  std::string query = {};    // after '?', not decoded
  HttpHeaders headers = {};  // lower-case names, values without surrounding blanks
  std::string body = {};     // chunked framing is already removed
  std::string peer = {};     // "192.0.2.1:4711", "[2001:db8::1]:4711" or "unix"

  std::string_view Header(std::string_view lower_case_name) const {
    return FindHeader(headers, lower_case_name);
  }
};

struct HttpResponse {
  int status = 200;
  HttpHeaders headers = {};  // without content-type, content-length, connection and date
  std::string body = {};
  std::string content_type = "application/json";
  bool close = false;  // server: close the connection after this answer

  std::string_view Header(std::string_view lower_case_name) const {
    return FindHeader(headers, lower_case_name);
  }
};

// "Not Found" for 404; "Unknown" for a status without a registered phrase.
std::string_view HttpReason(int status);

// "Sat, 21 Nov 2026 16:06:52 GMT", the form of the Date header.
std::string HttpDate(long long unix_seconds);

}  // namespace baltoro
