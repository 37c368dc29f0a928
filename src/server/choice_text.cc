#include "server/choice_text.h"

#include <utility>

namespace baltoro {
namespace {

bool IsText(OutputEventKind kind) {
  return kind == OutputEventKind::kReasoning || kind == OutputEventKind::kContent;
}

void Append(OutputEvent event, std::vector<OutputEvent>& out) {
  const bool continues = IsText(event.kind) || event.kind == OutputEventKind::kToolCallArguments;
  if (continues && !out.empty() && out.back().kind == event.kind &&
      out.back().call_index == event.call_index) {
    out.back().text += event.text;
  } else {
    out.push_back(std::move(event));
  }
}

}  // namespace

size_t ChoiceText::Push(std::span<const TokenId> tokens, std::vector<OutputEvent>& out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    ++tokens_;
    if (parser_.in_reasoning()) ++reasoning_tokens_;
    parser_.Push(tokens[i], parsed_);
    Emit(out);
    if (stops_.matched()) return i + 1;
  }
  return tokens.size();
}

void ChoiceText::Finish(std::vector<OutputEvent>& out) {
  if (stops_.matched()) return;
  parser_.Finish(parsed_);
  Emit(out);
  if (!stops_.matched()) FlushHeld(out);
}

// Stop strings are looked for in the visible answer only: never in reasoning, and a tool call is
// never cut. Nothing matches across either.
void ChoiceText::Emit(std::vector<OutputEvent>& out) {
  for (OutputEvent& event : parsed_) {
    if (stops_.matched()) break;
    if (event.kind != OutputEventKind::kContent || tokens_ <= min_tokens_) {
      FlushHeld(out);
      Append(std::move(event), out);
      continue;
    }
    OutputEvent shown;
    stops_.Push(event.text, shown.text);
    if (!shown.text.empty()) Append(std::move(shown), out);
  }
  parsed_.clear();
}

void ChoiceText::FlushHeld(std::vector<OutputEvent>& out) {
  OutputEvent shown;
  stops_.Flush(shown.text);
  if (!shown.text.empty()) Append(std::move(shown), out);
}

}  // namespace baltoro
