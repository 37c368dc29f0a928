#pragma once

// Where the media of a request come from that it only names.

#include <memory>
#include <string>

#include "base/status.h"

namespace baltoro {

class MediaSource {
 public:
  virtual ~MediaSource() = default;
  // The bytes that an http, https or file URL names. `url` is as the client wrote it: of any
  // length and content, but not of the scheme "data". kInvalidArgument where the client is told
  // why: one sentence without paths and addresses that it did not send. Called by several threads,
  // none of which serves connections: it may block for seconds.
  virtual Result<std::string> Read(const std::string& url) = 0;
};

// One that reads nothing, and says which flag it would take.
std::unique_ptr<MediaSource> MakeClosedMediaSource();

}  // namespace baltoro
