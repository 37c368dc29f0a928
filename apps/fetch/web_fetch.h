#pragma once

// Pictures from the web for strangers: which hosts, which addresses, and for how long.

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "server/media_source.h"

namespace baltoro {

struct WebPolicy {
  std::vector<std::string> hosts = {};  // in small letters: any port of these
  bool any_public = false;              // ports 80 and 443 of other hosts too
  bool private_hosts = false;           // `hosts` may have private addresses
  bool redirects = true;                // each to where a request could have gone
  Seconds seconds_max = 5;              // of one picture, redirects and all
  std::string user_agent = "baltoro";
  // Names with addresses in place of what the system says of them, in libcurl's form: for tests.
  std::vector<std::string> resolve = {};
};

// What an http or https URL answers, 200 alone. Every connection is to an address that was judged
// when it was made (KindOfAddress), for the first URL and for each that it redirects to: what a
// name meant before does not matter. No proxies, cookies, credentials or compression; nothing is
// sent but the request. The sentence of an error, kInvalidArgument also where the host is at fault,
// names no address and no host but those of the URL. Any thread; nothing is kept between calls.
Result<std::string> FetchFromWeb(const WebPolicy& policy,
                                 const std::string& url,
                                 const MediaBounds& bounds);

}  // namespace baltoro
