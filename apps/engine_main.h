#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "request/request.h"

namespace baltoro {

// The first argument of the engine process that the door starts.
inline constexpr const char* kEngineSubcommand = "engine";

// What output is held to a grammar with; null without a folder to read the vocabulary from.
std::shared_ptr<ConstraintFactory> MakeConstraints(const std::string& tokenizer_dir,
                                                   int32_t vocab_size);

// The engine process: serves the door at the other end of the inherited socket until it goes away.
int RunEngineMain(const std::vector<std::string>& args);

}  // namespace baltoro
