#pragma once

// The last refusals and failures, so that whoever asks why sees the server's own words. A client is
// told of its own only: their sentences may repeat what it sent. Any thread.

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"

namespace baltoro {

struct RecentError {
  std::string client = {};
  int64_t unix_seconds = 0;
  std::string_view method = {}, route = {};  // from the server's own tables
  bool streamed = false;                     // it came inside an answer whose status was 200
  ApiError error = {};
};

class RecentErrors {
 public:
  static constexpr size_t kKept = 128;          // of all clients; the oldest go first
  static constexpr size_t kMessageBytes = 512;  // longer ones are cut

  void Add(RecentError error);
  // The newest first.
  std::vector<RecentError> Of(std::string_view client) const;

 private:
  mutable std::mutex mutex_;
  std::deque<RecentError> errors_;
};

}  // namespace baltoro
