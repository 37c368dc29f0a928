#pragma once

// One held-out case: a request and what a right answer is. pocket/README.md describes the file.

#include <string>

#include "base/json.h"
#include "base/status.h"

namespace baltoro {

struct EvalVerdict {
  bool right = false;
  bool failed = false;  // no answer to judge
  Json got;
  std::string note;
};

struct EvalCase {
  std::string id, task, tier;
  bool thinking = true;
  Json messages, tools, expect;
  int64_t max_tokens = 512;

  static Result<EvalCase> Parse(const Json& line);
  // The body of a chat completion: greedy. With `constrained` false, calls are not held to the
  // declared tools.
  Json Request(const std::string& model, bool constrained = true) const;
  bool has_tools() const { return tools.is_array() && !tools.empty(); }
  EvalVerdict Judge(const Json& answer) const;
};

}  // namespace baltoro
