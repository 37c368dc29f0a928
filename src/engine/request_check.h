#pragma once

#include "base/status.h"
#include "engine/engine.h"
#include "request/request.h"

namespace baltoro {

// The one check of what a request may ask of an engine, whoever sends it: every id within the
// vocabulary, every number finite and in its range, a length that can ever run. The message names
// the field.
Status CheckRequest(const Request& request, const EngineInfo& info);

}  // namespace baltoro
