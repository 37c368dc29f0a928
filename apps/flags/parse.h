#pragma once

// A command line to flags with typed values. The rules are argparse's as vLLM uses it:
// --opt value and --opt=value, underscores for dashes, unique beginnings, --no-x, single-dash words
// (-tp 8), dotted parts of JSON flags (--compilation-config.mode 3, --x.list+ a,b).

#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "flags/flag_table.h"

namespace baltoro {

struct FlagUse {
  const FlagSpec* spec = nullptr;
  std::string spelling;  // in full, with dashes: "--no-enable-prefix-caching", "-tp"
  Json value;            // true or false for a flag without value
  int times = 0;         // on this command line; 0 for one that came from below
};

struct ParsedFlags {
  std::vector<std::string> positionals;
  std::map<std::string, FlagUse, std::less<>> uses;  // by the row's name
  std::vector<std::string> notices;
  // Flags that have become keys of others (kMoved): "eplb-config.window_size", and as it was given.
  std::map<std::string, std::string> moved;
};

// Sets `target` where the flag was given.
template <typename T>
void Get(const ParsedFlags& flags, std::string_view name, T& target) {
  const auto found = flags.uses.find(name);
  if (found != flags.uses.end()) target = found->second.value.template get<T>();
}

// `args` without program and subcommand. `below` holds what has lower precedence (the file of
// --config); dotted parts are merged over it. Errors are usage errors and name the argument.
Result<ParsedFlags> ParseFlags(const FlagTable& table,
                               std::span<const std::string> args,
                               ParsedFlags below = {});

}  // namespace baltoro
