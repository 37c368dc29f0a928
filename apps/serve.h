#pragma once

#include <optional>
#include <string>

#include "flags/serve_options.h"
#include "host_plan.h"
#include "model_text.h"
#include "net/tls_refresh.h"
#include "server/server.h"

namespace baltoro {

// What the door is made of.
struct DoorParts {
  ServerConfig config;
  std::optional<TlsRefresh> tls;  // empty: plain HTTP
  ModelText text;
};

// All that `serve` knows before it listens.
struct Launch {
  DoorParts door;  // not of a node without one, nor of a model that is only described
  EngineConfig engine;
  HostPlan plan;
};

// From checked flags to what would be started. Whatever is refused is refused here, for `serve` and
// `plan` alike; only a plan names a description, or GPUs that need not be here.
Result<Launch> PrepareLaunch(const ServeOptions& options,
                             const std::string& program,
                             const PlannedModel& model,
                             const std::optional<DeviceSpec>& gpu);

// `baltoro serve`: the door and its engine, until a signal ends it. Returns the exit code.
// `program` is this executable's path, which the engine process runs again.
int RunServe(const ServeOptions& options, const std::string& program);

}  // namespace baltoro
