#pragma once

// What the log says of speculative decoding, beside the line of statistics.

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "engine/speculation.h"

namespace baltoro {

// vLLM's line about what came between the two in `elapsed` seconds, of drafts of up to `drafts_max`
// tokens, and how many the last step asked for; empty if nothing was drafted.
std::string DraftLine(const DraftStats& before,
                      const DraftStats& now,
                      int32_t drafts_max,
                      int32_t wanted,
                      Seconds elapsed);

}  // namespace baltoro
