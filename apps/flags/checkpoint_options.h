#pragma once

// `baltoro quantize` and `baltoro inspect`: work on checkpoint folders.

#include <cstdint>
#include <span>
#include <string>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct QuantizeCommand {
  std::string source;  // a directory, or a name in the Hugging Face cache
  std::string target;  // a directory to make
  std::string format;  // "fp8", "int4", "w4a8"
  std::string parts;   // empty: what the public checkpoints of the format quantise
  int64_t shard_bytes = 5'000'000'000;
  int threads = 0;  // 0: one for each processor
};

struct InspectCommand {
  std::string model;  // a directory, or a name in the Hugging Face cache
  bool json = false;
};

FlagTable QuantizeFlags();
FlagTable InspectFlags();

Outcome<QuantizeCommand> ParseQuantize(std::span<const std::string> args);
Outcome<InspectCommand> ParseInspect(std::span<const std::string> args);

}  // namespace baltoro
