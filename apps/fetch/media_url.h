#pragma once

// URLs that strangers give, read once: what was checked is what is fetched.

#include <curl/curl.h>

#include <memory>
#include <string>

#include "base/status.h"

namespace baltoro {

struct UrlCloser {
  void operator()(CURLU* url) const { curl_url_cleanup(url); }
};

struct WebUrl {
  std::unique_ptr<CURLU, UrlCloser> parsed;  // what libcurl is given: it reads no text again
  bool https = false;
  std::string host;  // in small letters, an IPv6 address without its brackets
  int port = 0;
};

// An http or https URL. Every form is refused that some reader of URLs takes for another host:
// names of users, backslashes, spaces, IPv4 addresses that are not four decimal numbers, encoded
// hosts, dots at their end. The error is a sentence that goes on after the place of the URL.
Result<WebUrl> ReadWebUrl(const std::string& url);

// The absolute path that a file URL names, decoded once. Refused: a host other than none and
// localhost, a query, "." and ".." in whatever spelling, and paths with nothing between slashes.
Result<std::string> ReadFileUrl(const std::string& url);

}  // namespace baltoro
