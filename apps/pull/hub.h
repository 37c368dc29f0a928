#pragma once

// The two hubs: their addresses, and what their refusals mean to a user.

#include <string>

#include "base/status.h"
#include "flags/pull_options.h"
#include "pull/http_session.h"
#include "pull/listing.h"

namespace baltoro {

struct Hub {
  bool modelscope = false;
  std::string endpoint, repo, revision;
  std::string shown;  // the endpoint as it is told, without a user and password that may be in it
  std::string token;  // empty: none
  std::string page;   // where a person looks at the repository

  std::string ListingUrl() const;
  // `commit` where the hub named one: all files are then of the same version.
  std::string FileUrl(const std::string& path, const std::string& commit) const;
};

// kInvalidArgument for an endpoint that is none, or a token that no header may have.
Result<Hub> HubOf(const PullCommand& command);

// What a user does about an answer that is no 2xx. kUnavailable: another attempt may do.
Status Explain(const Hub& hub, const std::string& what, const HttpEnd& end);

// How long to wait before another attempt, the first having number 1.
double WaitBefore(int attempt, double first_wait_s, const HttpHead& head);

}  // namespace baltoro
