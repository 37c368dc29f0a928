#pragma once

// From the comparisons of all prompts to one verdict. Pure.

#include <string>
#include <vector>

#include "verify/asking.h"
#include "verify/comparing.h"

namespace baltoro {

// Of one streamed answer, in milliseconds; `tpot` is negative where it has one token.
struct StreamTimes {
  double ttft = 0, tpot = -1;
};
StreamTimes TimesOf(const Answer& answer);

// Of one server's streamed answers, in milliseconds.
struct Times {
  size_t answers = 0;
  double ttft_median = 0, ttft_p99 = 0, tpot_median = 0, tpot_p99 = 0;
};

struct Verified {
  std::string ours_url, theirs_url, ours_model, theirs_model;
  Abilities ours_can, theirs_can;
  std::vector<PromptComparison> prompts = {};
  size_t asked = 0;  // prompts; fewer are there where the run was interrupted
  Times ours_times = {}, theirs_times = {};
  double near_tie = 0, tolerance = 0;
  double seconds = 0;
  bool interrupted = false;
};

enum class Sameness { kSame, kNearTies, kDiffers, kNothing };

struct Conclusion {
  Sameness sameness = Sameness::kNothing;
  std::string sentence;
  std::vector<Finding> findings;          // worst first
  std::vector<std::string> not_compared;  // "not compared: what: why"
  std::vector<std::string> too_little;    // why the verdict rests on little; empty: it does not

  // Counts, of prompts.
  size_t asked = 0, answered = 0, refused = 0, equal = 0, near_ties = 0, parted = 0;
  size_t ids_compared = 0, counts_compared = 0, tokens_same = 0;
  size_t ours_varies = 0, theirs_varies = 0;
  LogprobDifference given_prompt, given_answer, own;
};

Conclusion Conclude(const Verified& verified);

const char* NameOf(Sameness sameness);  // "same", "same up to near ties", ...
int ExitCodeOf(Sameness sameness);

Times Summary(const std::vector<StreamTimes>& answers);

}  // namespace baltoro
