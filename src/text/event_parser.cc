#include "text/event_parser.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/trim.h"
#include "base/utf8.h"
#include "text/tool_call_ids.h"

namespace baltoro {
namespace {

constexpr std::string_view kSpace = " \t\r\n";
constexpr std::string_view kSpelledBegin = "<|tool_call_section_begin|>";
constexpr std::string_view kSpelledEnd = "<|tool_call_section_end|>";
constexpr size_t kSpaceBeforeCallMax = 32;  // behind a spelled beginning

// The function's name in a call id; empty if the id does not end in a colon and digits.
std::string_view NameOfCall(std::string_view id) {
  const size_t colon = id.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == id.size() ||
      id.find_first_not_of("0123456789", colon + 1) != std::string_view::npos) {
    return {};
  }
  std::string_view name = id.substr(0, colon);
  constexpr std::string_view kPrefix = "functions.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return name;
}

}  // namespace

EventParser::EventParser(const Tokenizer& tokenizer, const EventParserOptions& options)
    : tokenizer_(&tokenizer),
      skip_special_tokens_(options.skip_special_tokens),
      first_call_index_(options.first_call_index),
      section_begin_(tokenizer.SpecialId("<|tool_calls_section_begin|>")),
      section_end_(tokenizer.SpecialId("<|tool_calls_section_end|>")),
      call_begin_(tokenizer.SpecialId("<|tool_call_begin|>")),
      argument_begin_(tokenizer.SpecialId("<|tool_call_argument_begin|>")),
      call_end_(tokenizer.SpecialId("<|tool_call_end|>")),
      tools_(options.tools && section_begin_ && section_end_ && call_begin_ && argument_begin_ &&
             call_end_) {
  if (options.reasoning && options.starts_in_reasoning) {
    think_begin_ = tokenizer.SpecialId("<think>");
    think_end_ = tokenizer.SpecialId("</think>");
    if (think_end_) state_ = State::kReasoning;
  }
}

void EventParser::Push(TokenId id, std::vector<OutputEvent>& out) {
  if (TakeMarker(id, out)) return;
  if (tokenizer_->IsControl(id)) {
    // Arguments are for machines: what is no text never belongs into them.
    const bool text = state_ == State::kReasoning || state_ == State::kContent;
    if (skip_special_tokens_ || !text) return;
  }
  PushText(tokenizer_->TokenBytes(id), out);
}

void EventParser::Finish(std::vector<OutputEvent>& out) {
  const bool in_arguments = state_ == State::kArguments;
  Enter(State::kContent, out);
  // Cut off inside a string, this white space would have been part of it.
  if (in_arguments && !space_.empty()) AppendArguments(std::exchange(space_, {}), out);
}

// True if the token is a mark and not text in the present state.
bool EventParser::TakeMarker(TokenId id, std::vector<OutputEvent>& out) {
  if (state_ == State::kReasoning) {
    if (IsMarker(think_begin_, id) && at_start_) {
      at_start_ = false;
      return true;
    }
    if (IsMarker(think_end_, id)) {
      Enter(State::kContent, out);
      return true;
    }
    if (IsMarker(section_begin_, id) && !tools_) {
      Enter(State::kContent, out);
      return false;
    }
  }
  if (!tools_) return false;
  if (IsMarker(section_begin_, id)) {
    EndCall(out);
    Enter(State::kSection, out);
    in_section_ = true;
    return true;
  }
  if (IsMarker(section_end_, id)) {
    EndCall(out);
    in_section_ = false;
    if (state_ == State::kSection) Enter(State::kContent, out);
    return true;
  }
  if (IsMarker(call_begin_, id)) {
    EndCall(out);
    if (held_.empty() && spelled_.starts_with(kSpelledBegin)) {
      in_section_ = true;
      spelled_.clear();
    }
    Enter(State::kCallId, out);
    call_id_.clear();
    return true;
  }
  if (IsMarker(argument_begin_, id)) {
    if (state_ == State::kCallId) BeginArguments(out);
    return true;
  }
  if (IsMarker(call_end_, id)) {
    EndCall(out);
    return true;
  }
  return false;
}

void EventParser::BeginArguments(std::vector<OutputEvent>& out) {
  Enter(State::kSkippedCall, out);
  std::string id = Utf8Sanitize(Trim(call_id_));
  std::string name(NameOfCall(id));
  if (name.empty()) return;
  if (first_call_index_) id = ToolCallId(name, *first_call_index_ + calls_);
  state_ = State::kArguments;
  argument_seen_ = false;
  space_.clear();
  out.push_back({OutputEventKind::kToolCallBegin, std::move(id), std::move(name), calls_++});
}

// Leaves a call, if inside one, for the section or the content around it.
void EventParser::EndCall(std::vector<OutputEvent>& out) {
  if (state_ == State::kReasoning || state_ == State::kContent || state_ == State::kSection) return;
  const bool announced = state_ == State::kArguments;
  Enter(in_section_ ? State::kSection : State::kContent, out);
  space_.clear();
  if (announced) out.push_back({OutputEventKind::kToolCallEnd, {}, {}, calls_ - 1});
}

// A border: a character left incomplete before it will not be completed behind it.
void EventParser::Enter(State state, std::vector<OutputEvent>& out) {
  if (!held_.empty()) Emit(Utf8Sanitize(std::exchange(held_, {})), out);
  FlushSpelled(out);
  noise_.clear();
  state_ = state;
}

void EventParser::PushText(std::string_view bytes, std::vector<OutputEvent>& out) {
  if (bytes.empty()) return;
  if (bytes.find_first_not_of(kSpace) != std::string_view::npos) at_start_ = false;
  if (state_ == State::kCallId) {
    call_id_ += bytes;
    return;
  }
  held_ += bytes;
  size_t incomplete = 0;
  if (!Utf8IncompleteTail(held_, incomplete)) incomplete = 0;
  std::string tail = held_.substr(held_.size() - incomplete);
  held_.resize(held_.size() - incomplete);
  Emit(Utf8Sanitize(held_), out);
  held_ = std::move(tail);
}

void EventParser::Emit(std::string_view text, std::vector<OutputEvent>& out) {
  if (text.empty()) return;
  if (state_ == State::kArguments) {
    EmitArguments(text, out);
    return;
  }
  if (state_ == State::kSection) return DropNoise(text, out);
  if (state_ != State::kReasoning && state_ != State::kContent) return;
  if (!tools_) return EmitText(text, out);
  spelled_ += text;
  size_t shown = 0;  // of spelled_: what cannot belong to a beginning
  while (shown < spelled_.size()) {
    shown = std::min(spelled_.find('<', shown), spelled_.size());
    const std::string_view rest = std::string_view(spelled_).substr(shown);
    if (kSpelledBegin.starts_with(rest)) break;
    const bool space_only = rest.size() <= kSpelledBegin.size() + kSpaceBeforeCallMax &&
                            rest.find_first_not_of(kSpace, kSpelledBegin.size()) == rest.npos;
    if (rest.starts_with(kSpelledBegin) && space_only) break;
    ++shown;
  }
  EmitText(std::string_view(spelled_).substr(0, shown), out);
  spelled_.erase(0, shown);
}

void EventParser::FlushSpelled(std::vector<OutputEvent>& out) {
  if (!spelled_.empty()) EmitText(std::exchange(spelled_, {}), out);
}

// Text of a section around its calls, which ends a section whose end is spelled.
void EventParser::DropNoise(std::string_view text, std::vector<OutputEvent>& out) {
  noise_ += text;
  const size_t end = noise_.find(kSpelledEnd);
  if (end == std::string::npos) {
    if (noise_.size() > kSpelledEnd.size()) noise_.erase(0, noise_.size() - kSpelledEnd.size());
    return;
  }
  const std::string after = noise_.substr(end + kSpelledEnd.size());
  noise_.clear();
  in_section_ = false;
  state_ = State::kContent;
  Emit(after, out);
}

void EventParser::EmitText(std::string_view text, std::vector<OutputEvent>& out) {
  if (text.empty()) return;
  const auto kind =
      state_ == State::kReasoning ? OutputEventKind::kReasoning : OutputEventKind::kContent;
  if (out.empty() || out.back().kind != kind) out.push_back({kind, {}, {}, -1});
  out.back().text += text;
}

void EventParser::EmitArguments(std::string_view text, std::vector<OutputEvent>& out) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) {
    if (argument_seen_) space_ += text;
    return;
  }
  if (!argument_seen_) text.remove_prefix(begin);
  argument_seen_ = true;
  const size_t end = text.find_last_not_of(kSpace) + 1;
  space_ += text.substr(0, end);
  AppendArguments(space_, out);
  space_ = text.substr(end);
}

void EventParser::AppendArguments(std::string_view text, std::vector<OutputEvent>& out) {
  if (out.empty() || out.back().kind != OutputEventKind::kToolCallArguments) {
    out.push_back({OutputEventKind::kToolCallArguments, {}, {}, calls_ - 1});
  }
  out.back().text += text;
}

}  // namespace baltoro
