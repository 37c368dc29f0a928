#pragma once

// What this version makes of the flags that were given: a line where a flag changes nothing, and a
// refusal where it asks for what is not there. Nothing is accepted silently and ignored.

#include <string>
#include <vector>

#include "flags/parse.h"

namespace baltoro {

// A flag of which it is not known yet whether it has an effect.
struct OpenFlag {
  const FlagSpec* spec = nullptr;  // with `idle`
  std::string text;                // as it was given: "--cpu-offload-gb 4"
  bool asks = true;                // for something other than what is so anyway
  bool operator==(const OpenFlag&) const = default;
};

struct Availability {
  std::vector<std::string> given = {};  // "--max-num-seqs 8", and in brackets how else it was named
  std::vector<std::string> notices = {};  // "--trust-remote-code has no effect here: ..."
  std::vector<std::string> refusals =
      {};  // "--speculative-config is not available yet ..."; stop the start
  std::vector<OpenFlag> open = {};
};

// Of a flag whose feature is not there: values that ask for what is so anyway, with commas.
std::string TakenValues(const FlagSpec& spec);

// In the order of the table.
Availability Judge(const FlagTable& table, const ParsedFlags& flags);

// What becomes of the flags that were left open, once it is known how the engine runs.
Availability JudgeRun(const std::vector<OpenFlag>& open, const RunFacts& facts);

}  // namespace baltoro
