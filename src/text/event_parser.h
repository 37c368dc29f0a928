#pragma once

// The one reader of what a model writes: token ids become reasoning, content and tool calls. Both
// the streamed and the whole answer are printed from these events, so they cannot differ. Total:
// any sequence of ids gives events, and never more than it was given. One thread at a time.

#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace baltoro {

enum class OutputEventKind {
  kReasoning,
  kContent,
  kToolCallBegin,
  kToolCallArguments,
  kToolCallEnd
};

struct OutputEvent {
  OutputEventKind kind = OutputEventKind::kContent;
  std::string text;     // reasoning, content, arguments: valid UTF-8; at Begin the call's id
  std::string name;     // at Begin: the function's name
  int call_index = -1;  // of a tool call's events: 0, 1, ... within this answer

  bool operator==(const OutputEvent&) const = default;
};

struct EventParserOptions {
  bool reasoning = true;  // false: thinking is content like any other, with its marks
  bool tools = true;      // false: tool sections are content like any other, with their marks
  bool starts_in_reasoning = false;  // the prompt ended in an open <think>
  bool skip_special_tokens = true;   // false: control tokens are shown as text
  // Calls get the ids functions.NAME:INDEX with this index and the next ones, whatever the model
  // wrote; none: the ids as written.
  std::optional<int64_t> first_call_index = std::nullopt;
};

// Markers are found by name; where the tokenizer lacks them, that part is plain text.
//
// - Reasoning ends at </think>, or where a tool section begins. A <think> that opens it is dropped.
// - Inside a section only calls count, all else is noise and dropped; text after it is content.
// - A call is known by its id, `functions.NAME:DIGITS` (the prefix may lack). One whose id does not
//   end in a colon and digits is dropped with its arguments.
// - A call that is cut off has no End. One without its end mark ends where the next call begins or
//   the section ends.
// - Some answers spell the marks of a section in the singular, as ordinary text. Such a text counts
//   as a mark where nothing but white space lies between it and a call, and inside a section.
// - White space around an id and around arguments is dropped.
class EventParser {
 public:
  // `tokenizer` must outlive this.
  EventParser(const Tokenizer& tokenizer, const EventParserOptions& options);

  // Appends events; text that continues the last event of `out` is added to that event.
  void Push(TokenId id, std::vector<OutputEvent>& out);
  // The end of the answer: what was held back.
  void Finish(std::vector<OutputEvent>& out);

  bool saw_tool_call() const { return calls_ > 0; }
  bool in_reasoning() const { return state_ == State::kReasoning; }

 private:
  enum class State { kReasoning, kContent, kSection, kCallId, kArguments, kSkippedCall };

  bool IsMarker(std::optional<TokenId> marker, TokenId id) const { return marker && *marker == id; }
  bool TakeMarker(TokenId id, std::vector<OutputEvent>& out);
  void PushText(std::string_view bytes, std::vector<OutputEvent>& out);
  void BeginArguments(std::vector<OutputEvent>& out);
  void EndCall(std::vector<OutputEvent>& out);
  void Enter(State state, std::vector<OutputEvent>& out);
  void Emit(std::string_view text, std::vector<OutputEvent>& out);
  void EmitText(std::string_view text, std::vector<OutputEvent>& out);
  void FlushSpelled(std::vector<OutputEvent>& out);
  void DropNoise(std::string_view text, std::vector<OutputEvent>& out);
  void EmitArguments(std::string_view text, std::vector<OutputEvent>& out);
  void AppendArguments(std::string_view text, std::vector<OutputEvent>& out);

  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::optional<int64_t> first_call_index_;
  std::optional<TokenId> think_begin_, think_end_;  // empty: reasoning is plain
  std::optional<TokenId> section_begin_, section_end_, call_begin_, argument_begin_, call_end_;
  bool tools_;  // false: section_begin_ may still be known, because it ends reasoning

  State state_ = State::kContent;
  bool at_start_ = true;     // nothing but white space so far
  bool in_section_ = false;  // an open section surrounds the call
  int calls_ = 0;
  std::string
      spelled_;        // text that is, or may become, a section's beginning spelled in the singular
  std::string noise_;  // the last bytes of a section's noise: the start of its end, so spelled
  std::string held_;   // at most 3 bytes: the start of a character
  std::string call_id_;  // as read so far
  std::string space_;    // white space that arguments may end in
  bool argument_seen_ = false;
};

}  // namespace baltoro
