#pragma once

// Where the media of a request come from that it only names.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace baltoro {

struct MediaBounds {
  uint64_t bytes_max = 0;                 // an error as soon as there are more
  Seconds seconds_max = 0;                // for all of it
  const std::function<bool()>& unwanted;  // true: nobody waits for it any more
};

class MediaSource {
 public:
  virtual ~MediaSource() = default;
  // The bytes that an http, https or file URL names. `url` is as the client wrote it: of any
  // length and content, but not of the scheme "data". kInvalidArgument where the client is told
  // why: one sentence without paths and addresses that it did not send. Called by several threads,
  // none of which serves connections: it may block for seconds.
  virtual Result<std::string> Read(const std::string& url, const MediaBounds& bounds) = 0;
};

// Why nothing is read from a URL of a scheme that is not open here: names the flag that opens it.
Status RefuseMedia(const std::string& url);

// One that reads nothing.
std::unique_ptr<MediaSource> MakeClosedMediaSource();

}  // namespace baltoro
