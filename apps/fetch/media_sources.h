#pragma once

#include <memory>

#include "base/status.h"
#include "flags/media_options.h"
#include "server/media_source.h"

namespace baltoro {

// The media that requests may name: none but what the options open. An error names the flag.
Result<std::shared_ptr<MediaSource>> OpenMediaSource(const MediaOptions& options);

}  // namespace baltoro
