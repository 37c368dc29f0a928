#pragma once

#include <map>
#include <string>
#include <variant>

namespace baltoro {

// What to print before the process ends. Exit codes: 0 help, 1 the start is refused (a feature that
// is not there), 2 a usage error.
struct Ending {
  int exit_code = 0;
  std::string out = {};  // to standard output
  std::string err = {};  // to standard error
};

template <typename Options>
using Outcome = std::variant<Options, Ending>;

using Environment = std::map<std::string, std::string>;

}  // namespace baltoro
