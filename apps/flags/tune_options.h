#pragma once

// `baltoro tune`: which kernels are the fastest on this card for a model.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct TuneCommand {
  std::string model;  // a built-in name, or a directory
  std::string device = "auto";
  int32_t tensor = 1;
  int32_t layers = 0;
  std::vector<int64_t> batches, prefills;
  int64_t context = 0;
  std::string kv_cache_dtype = "auto";
  int32_t repeats = 0, rounds = 0;
  double least_gain = 0;     // percent of the step
  std::string folder, file;  // one of them: where the table goes
  std::string notice;        // of vLLM's flags that change nothing; to print
};

FlagTable TuneFlags();
// `args` after `tune`.
Outcome<TuneCommand> ParseTune(std::span<const std::string> args);

}  // namespace baltoro
