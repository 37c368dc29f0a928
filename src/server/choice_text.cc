#include "server/choice_text.h"

namespace baltoro {

size_t ChoiceText::Push(std::span<const TokenId> tokens, std::vector<OutputEvent>& out) {
  for (size_t i = 0; i < tokens.size(); ++i) {
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

// Stop strings are looked for in reasoning and in content, each on its own; a tool call is never
// cut.
void ChoiceText::Emit(std::vector<OutputEvent>& out) {
  for (OutputEvent& event : parsed_) {
    if (stops_.matched()) break;
    const bool text =
        event.kind == OutputEventKind::kReasoning || event.kind == OutputEventKind::kContent;
    if (!text || event.kind != held_kind_) FlushHeld(out);
    if (!text) {
      out.push_back(std::move(event));
      continue;
    }
    held_kind_ = event.kind;
    OutputEvent shown{.kind = event.kind, .text = {}, .name = {}, .call_index = 0};
    stops_.Push(event.text, shown.text);
    if (!shown.text.empty()) out.push_back(std::move(shown));
  }
  parsed_.clear();
}

void ChoiceText::FlushHeld(std::vector<OutputEvent>& out) {
  OutputEvent shown{.kind = held_kind_, .text = {}, .name = {}, .call_index = 0};
  stops_.Flush(shown.text);
  if (!shown.text.empty()) out.push_back(std::move(shown));
}

}  // namespace baltoro
