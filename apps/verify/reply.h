#pragma once

// What a server answered to one prompt, in the form that is compared.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "bench/serve/answer.h"

namespace baltoro {

// A token of an answer, and what else was likely there.
struct TokenChance {
  std::string text;
  double logprob = 0;  // natural
  std::vector<std::pair<std::string, double>> top = {};
};

struct ModelReply {
  std::string content, thinking, finish_reason;
  std::vector<StreamedCall> calls;
  std::vector<TokenChance> chances;         // of all tokens of the answer; empty: none given
  std::vector<int64_t> prompt_ids, ids;     // empty: not given
  int64_t prompt_tokens = -1, tokens = -1;  // -1: not given
};

// Of a whole chat completion. kInvalidArgument where it is none.
Result<ModelReply> ReadReply(const Json& answer);

// Log-probabilities of a prompt's tokens from a completion with `echo`: one for each of `count`
// tokens but the first, whose place holds 0.
Result<std::vector<double>> ReadEcho(const Json& answer, size_t count);

// The field `tokens` of /tokenize.
Result<std::vector<int64_t>> ReadTokens(const Json& answer);

// Everything that one server gave for one prompt. A text that is not empty says why something is
// missing.
struct Heard {
  ModelReply whole;
  std::string whole_error;  // "500: message"
  bool refused = false;     // by a status of 400 to 499
  Answer streamed;          // its error is within
  std::vector<int64_t> prompt_ids;
  std::string prompt_ids_error;
  std::vector<double> given;  // log-probabilities of the given text; see GivenText
  std::string given_error;
};

// A prompt's tokens with those of an answer behind them, whose log-probabilities both servers are
// asked for.
struct GivenText {
  std::vector<int64_t> ids;
  size_t prompt_count = 0;
};

}  // namespace baltoro
