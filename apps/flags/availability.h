#pragma once

// What this version makes of the flags that were given: a line where a flag changes nothing, and a
// refusal where it asks for what is not there. Nothing is accepted silently and ignored.

#include <string>
#include <vector>

#include "flags/parse.h"

namespace baltoro {

struct Availability {
  std::vector<std::string> notices;  // "--enforce-eager has no effect here: a CPU has no graphs"
  std::vector<std::string> cpu_notices;  // likewise, true where no GPU is used
  std::vector<std::string>
      refusals;  // "--speculative-config is not available yet ..."; stop the start
};

// In the order of the table.
Availability Judge(const FlagTable& table, const ParsedFlags& flags);

}  // namespace baltoro
