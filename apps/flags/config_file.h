#pragma once

// The file of --config as arguments. It has the precedence of a command line that stands before the
// real one.

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "flags/flag_table.h"

namespace baltoro {

struct ConfigArguments {
  std::vector<std::string> args;  // "--max-num-seqs", "64", ...
  std::vector<std::string> notices;
};

// `text` is YAML, a mapping at the top: true gives the bare flag, false nothing (with a notice),
// a list repeats the value (or is the JSON list that the flag takes), a mapping becomes one JSON
// value. Errors start with `path`.
Result<ConfigArguments> ParseConfigText(const FlagTable& table,
                                        const std::string& text,
                                        const std::string& path);

// Reads the file, whose name must end in .yaml or .yml.
Result<ConfigArguments> ReadConfigFile(const FlagTable& table, const std::string& path);

}  // namespace baltoro
