#pragma once

// What two servers gave for one prompt, side by side. Pure: no server, no clock.

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verify/prompts.h"
#include "verify/reply.h"

namespace baltoro {

// Worst first.
enum class FindingKind {
  kNoAnswer,      // an error where an answer should be
  kPromptTokens,  // the template gives other tokens
  kWrongCall,     // a tool call that is not what was declared
  kWrongForm,     // content that is not of the form asked for
  kStream,        // the streamed answer is broken, or another than the whole one
  kReading,       // the same tokens became another message
  kAnswer,        // other tokens, and no near tie
  kFinish,        // equal answers that end for other reasons
  kLogprobs,      // log-probabilities are too far apart in the mean
};
const char* NameOf(FindingKind kind);

// Something that servers of the same weights do not differ in.
struct Finding {
  FindingKind kind;
  std::string prompt;  // its id; empty: of all
  std::string said;
};

// Differences between log-probabilities of the same tokens, in nats.
struct LogprobDifference {
  int64_t tokens = 0;
  double sum = 0, largest = 0;

  void Add(double ours, double theirs);
  void Add(const LogprobDifference& other);
  double mean() const { return tokens == 0 ? 0 : sum / static_cast<double>(tokens); }
};

// Where two answers part.
struct Parting {
  int64_t at = -1;                     // token of the answer, from 0; -1: unknown
  std::string ours = {}, theirs = {};  // the two tokens
  // Nats between them, where a server tells.
  std::optional<double> gap_ours = {}, gap_theirs = {};
  bool near = false;
};

enum class TokensCompared { kNo, kCounts, kIds };

struct PromptComparison {
  std::string id;
  std::vector<Finding> findings;
  std::string refused;                          // what both say who refuse the prompt
  bool answered = false;                        // by both
  TokensCompared tokens = TokensCompared::kNo;  // of the prompt
  std::string tokens_why;                       // where not
  bool equal = false;                           // the answers
  std::optional<Parting> parting;               // where they are not
  bool ours_varies = false,
       theirs_varies = false;                    // streamed and whole answers differ by a near tie
  LogprobDifference given_prompt, given_answer;  // of the same text, given to both
  LogprobDifference own;                         // of the answers, up to where they part
  std::string given_why;                         // where nothing was given
};

struct CompareLimits {
  double near_tie = 0.5;  // nats
};

PromptComparison Compare(const VerifyPrompt& prompt,
                         const Heard& ours,
                         const Heard& theirs,
                         const GivenText& given,
                         const CompareLimits& limits);

// The text for both: the prompt's tokens, with the other server's answer behind them or else ours.
// kNotFound where a server tells no tokens, or they are more than is asked for.
Result<GivenText> ChooseGiven(const Heard& ours, const Heard& theirs);

}  // namespace baltoro
