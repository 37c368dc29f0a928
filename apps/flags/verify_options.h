#pragma once

// `baltoro verify`: whether two servers of the same weights give the same answers.

#include <span>
#include <string>
#include <vector>

#include "flags/ending.h"
#include "flags/flag_table.h"

namespace baltoro {

// One of the two servers, as the command line names it.
struct VerifyTarget {
  std::string url;      // without a slash or "/v1" at its end
  std::string model;    // empty: the first that the server names
  std::string api_key;  // empty: none is shown
};

struct VerifyOptions {
  VerifyTarget ours{.url = "http://127.0.0.1:8000", .model = {}, .api_key = {}};
  VerifyTarget theirs;
  std::string prompts;            // path; empty: those that are built in
  std::vector<std::string> only;  // patterns of prompts' names; empty: all
  std::string report;             // folder; empty: none
  bool json = false;
  int concurrency = 1;
  int max_tokens = 512;    // of an answer, where a prompt does not ask for fewer
  double timeout = 600;    // seconds of one request
  double near_tie = 0.5;   // nats between two tokens that may change places
  double tolerance = 0.1;  // mean difference of log-probabilities, in nats
  std::string ca_file;     // of certificates; empty: the system's
};

FlagTable VerifyFlags();

// `args` are what follows the subcommand.
Outcome<VerifyOptions> ParseVerify(std::span<const std::string> args,
                                   const Environment& environment);

}  // namespace baltoro
