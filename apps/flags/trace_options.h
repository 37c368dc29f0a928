#pragma once

// Where spans of requests go: --otlp-traces-endpoint, and the environment variables of
// OpenTelemetry's exporters.

#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "flags/ending.h"

namespace baltoro {

struct TraceOptions {
  std::string endpoint;                                       // the whole URL; empty: no traces
  std::vector<std::pair<std::string, std::string>> resource;  // attributes, service.name first
  std::vector<std::string> headers;                           // "Name: value"; may be secret
  std::string ca_file;                                        // empty: the system's
  std::string version;                                        // of the server
};

// `given` is the flag's value, or empty. What the flag asks for and cannot be done is an error;
// an environment that asks for it, which may be meant for other programs, gets a notice.
Result<TraceOptions> FindTraceOptions(const std::string& given,
                                      const Environment& environment,
                                      std::vector<std::string>& notices);

}  // namespace baltoro
