#pragma once

// What requests may hold besides text, in vLLM's form.

#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct MediaOptions {
  int64_t pictures_max = 999;  // of one request; 0: none is taken
  int64_t videos_max = 999;    // likewise
  // What a request may only name.
  std::string folder;              // of files; empty: none is read
  std::vector<std::string> hosts;  // of the web, in small letters, IPv6 without brackets
  bool any_public_host = false;    // beside these
  bool private_hosts = false;      // `hosts` may have private addresses
  bool redirects = true;           // are followed
  double fetch_seconds_max = 5;    // for one picture
};

// --allowed-media-domains: each host by its whole name, or "*". An error names the one that is
// none.
Status ReadMediaHosts(const std::vector<std::string>& hosts, MediaOptions& out);

// --limit-mm-per-prompt: from a kind of media to the most of it, or to {"count": N, "width",
// "height"}. An error names the key and what to give. A key that changes nothing here gets a
// notice.
Status ReadMediaLimits(const Json& limits, std::vector<std::string>& notices, MediaOptions& out);

}  // namespace baltoro
