#pragma once

// `baltoro chat` and `baltoro eval`: clients of a running server.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

struct ChatOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string model;  // empty: the first that the server names
  std::string api_key;
  bool thinking = true;
  std::string system;               // empty: none
  std::vector<std::string> images;  // paths, for the first question
  std::optional<double> temperature;
  std::optional<int64_t> max_tokens;
  std::string history;  // path of the file; empty: none
  bool plain = false;   // no escape codes, even on a terminal
  std::string prompt;   // the words of the command line; empty: a conversation, or standard input
};

struct EvalOptions {
  std::string url = "http://127.0.0.1:8000";
  std::string model;  // empty: the first that the server names
  std::string api_key;
  std::string cases;   // path of task cases; empty: those that come with the pocket model
  std::string loglik;  // path of texts for log-likelihood; empty: none
  std::string task;    // empty: all tasks
  int64_t limit = 0;   // cases of a task; 0: all
  int concurrency = 8;
  bool compare_constraint = false;  // cases with tools also without the constraint
  std::string output;               // path of the JSON result; empty: none
};

FlagTable ChatFlags();
FlagTable EvalFlags();

// `args` are what follows the subcommand. An API key comes from VLLM_API_KEY where the flag is
// absent; where the history is, from XDG_STATE_HOME and HOME; NO_COLOR and TERM=dumb are obeyed.
Outcome<ChatOptions> ParseChat(std::span<const std::string> args, const Environment& environment);
Outcome<EvalOptions> ParseEval(std::span<const std::string> args, const Environment& environment);

}  // namespace baltoro
