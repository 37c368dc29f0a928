#pragma once

#include <string>
#include <vector>

namespace baltoro {

// The first argument of the engine process that the door starts.
inline constexpr const char* kEngineSubcommand = "engine";

// The engine process: serves the door at the other end of the inherited socket until it goes away.
int RunEngineMain(const std::vector<std::string>& args);

}  // namespace baltoro
