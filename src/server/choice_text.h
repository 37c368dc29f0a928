#pragma once

// One choice of one exchange: token ids in, pieces of the answer out. Streamed and whole answers
// are both printed from these pieces, so they cannot differ. One thread.

#include <span>
#include <string>
#include <vector>

#include "request/request.h"
#include "text/event_parser.h"
#include "text/stop_matcher.h"
#include "text/tokenizer.h"

namespace baltoro {

class ChoiceText {
 public:
  // Stop strings are looked for in content only, and not in the text of the first `min_tokens`
  // tokens.
  ChoiceText(const Tokenizer& tokenizer,
             const EventParserOptions& options,
             const StopMatcher& stops,
             int32_t min_tokens)
      : parser_(tokenizer, options), stops_(stops), min_tokens_(min_tokens) {}

  // Takes tokens until a stop string is complete; returns how many were taken (all, unless
  // stopped). Text that continues the last event of `out` is added to that event.
  size_t Push(std::span<const TokenId> tokens, std::vector<OutputEvent>& out);
  // The sequence ended: what was held back comes out.
  void Finish(std::vector<OutputEvent>& out);

  const std::string* stop_string() const {
    return stops_.matched() ? &stops_.stop(*stops_.matched()) : nullptr;
  }
  // Tokens of reasoning, its end mark included.
  int64_t reasoning_tokens() const { return reasoning_tokens_; }
  bool saw_tool_call() const { return parser_.saw_tool_call(); }

 private:
  void Emit(std::vector<OutputEvent>& out);
  void FlushHeld(std::vector<OutputEvent>& out);

  EventParser parser_;
  StopMatcher stops_;
  int32_t min_tokens_;
  int64_t tokens_ = 0;  // pushed so far
  int64_t reasoning_tokens_ = 0;
  std::vector<OutputEvent> parsed_;
};

}  // namespace baltoro
