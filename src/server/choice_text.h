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
  ChoiceText(const Tokenizer& tokenizer,
             const EventParserOptions& options,
             const StopMatcher& stops)
      : parser_(tokenizer, options), stops_(stops) {}

  // Takes tokens until a stop string is complete; returns how many were taken (all, unless
  // stopped).
  size_t Push(std::span<const TokenId> tokens, std::vector<OutputEvent>& out);
  // The sequence ended: what was held back comes out.
  void Finish(std::vector<OutputEvent>& out);

  const std::string* stop_string() const {
    return stops_.matched() ? &stops_.stop(*stops_.matched()) : nullptr;
  }
  bool saw_tool_call() const { return parser_.saw_tool_call(); }

 private:
  void Emit(std::vector<OutputEvent>& out);
  void FlushHeld(std::vector<OutputEvent>& out);

  EventParser parser_;
  StopMatcher stops_;
  std::vector<OutputEvent> parsed_;
  OutputEventKind held_kind_ = OutputEventKind::kContent;  // of the text inside stops_
};

}  // namespace baltoro
