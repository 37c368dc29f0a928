#include <memory>
#include <utility>

#include "bench/serve/answer.h"
#include "counted/work_case.h"
#include "server/chat_shape.h"
#include "server/choice_text.h"
#include "server/completion_shape.h"
#include "server/messages_shape.h"
#include "server/responses_shape.h"

namespace baltoro::work {
namespace {

constexpr char kSection[] = "<|tool_calls_section_begin|>";
constexpr char kSectionEnd[] = "<|tool_calls_section_end|>";

using MakeShape = std::function<std::unique_ptr<ResponseShape>()>;

std::unique_ptr<ResponseShape> Chat() {
  return MakeChatShape(Words(), {.id = "chatcmpl-1", .model = "m"});
}
std::unique_ptr<ResponseShape> Messages() {
  return MakeMessagesShape({.id = "msg_1", .model = "m"});
}
std::unique_ptr<ResponseShape> Responses() {
  return MakeResponsesShape(
      {.id = "resp_1", .name = "1", .model = "m", .echo = Json::object(), .on_done = nullptr});
}
std::unique_ptr<ResponseShape> Completion() {
  return MakeCompletionShape(Words(), {.id = "cmpl-1", .model = "m", .logprobs = true});
}

ChoiceText NewText() {
  EventParserOptions options;
  options.starts_in_reasoning = true;
  options.first_call_index = 0;
  return ChoiceText(Words(), options, StopMatcher({"stop here", "\n\n\n\n"}, false), 0);
}

// Token by token, as an engine gives them, each of which is sent.
Work Stream(std::vector<TokenId> ids, const MakeShape& make) {
  return [ids = std::move(ids), make] {
    const std::unique_ptr<ResponseShape> shape = make();
    ChoiceText text = NewText();
    ChoiceState state;
    Usage usage;
    std::string out;
    size_t sent = 0;
    shape->Begin(state, &usage, out);
    for (size_t i = 0; i <= ids.size(); ++i) {
      std::vector<OutputEvent> events;
      if (i < ids.size()) {
        BT_CHECK(text.Push(std::span(ids).subspan(i, 1), events) == 1);
      } else {
        text.Finish(events);
      }
      ++usage.completion_tokens;
      if (!events.empty()) shape->Delta(state, {events, {}, {}}, &usage, out);
      sent += out.size();
      out.clear();
    }
    state.end.finish_reason = "stop";
    shape->End(state, &usage, out);
    shape->CloseStream(usage, true, out);
    BT_CHECK(sent + out.size() > 0);
  };
}

Work Whole(std::vector<TokenId> ids, const MakeShape& make, bool logprobs) {
  return [ids = std::move(ids), make, logprobs] {
    ChoiceText text = NewText();
    std::vector<ChoiceState> states(1);
    ChoiceState& state = states[0];
    BT_CHECK(text.Push(ids, state.events) == ids.size());
    text.Finish(state.events);
    if (logprobs) {
      for (const TokenId id : ids) state.logprobs.push_back({{id, -0.5f, 1}, {id + 1, -1.5f, 2}});
    }
    state.end.finish_reason = "stop";
    BT_CHECK(!make()->Whole(states, {}).empty());
  };
}

std::vector<TokenId> Ids(const std::string& text) {
  return Words().EncodeWithSpecials(text);
}

std::string Thought(size_t size) {
  return Times(size, "I think so. ");
}
std::string Content(size_t size) {
  return "</think>" + Times(size, "A word\n");
}
std::string Calls(size_t size) {
  constexpr char kCall[] =
      "<|tool_call_begin|>functions.look:0<|tool_call_argument_begin|>{\"at\": 1}<|tool_call_end|>";
  return "</think>Let me see." + (kSection + Times(size, kCall)) + kSectionEnd;
}
std::string Arguments(size_t size) {
  return "</think>" +
         (kSection +
          ("<|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>{\"text\": \"" +
           Times(size, "more of it\\n"))) +
         "\"}<|tool_call_end|>" + kSectionEnd;
}
// White space that may be the end of the arguments, or not.
std::string Blanks(size_t size) {
  return "</think>" +
         (kSection + ("<|tool_call_begin|>functions.write:0<|tool_call_argument_begin|>{" +
                      Times(size, " \n\t "))) +
         "}" + Times(size, " \n\t ") + "<|tool_call_end|>" + kSectionEnd;
}
// What could be a mark that is spelled as text, and is none.
std::string NearlyMarks(size_t size) {
  return "</think>" + Times(size, "<|tool_call_section_begin|> <|tool_call_se <");
}
std::string Noise(size_t size) {
  return "</think>" + (kSection + Times(size, "noise <|tool_call_section_en ")) + kSectionEnd;
}
std::string LongId(size_t size) {
  return "</think>" + (kSection + ("<|tool_call_begin|>functions." + Times(size, "name "))) +
         ":0<|tool_call_argument_begin|>{}<|tool_call_end|>" + kSectionEnd;
}

WorkCase StreamCase(std::string name, size_t size, std::string (*write)(size_t), MakeShape make) {
  return {std::move(name), size, [write, make](size_t n) { return Stream(Ids(write(n)), make); }};
}
WorkCase WholeCase(std::string name,
                   size_t size,
                   std::string (*write)(size_t),
                   MakeShape make,
                   bool logprobs = false) {
  return {std::move(name), size,
          [write, make, logprobs](size_t n) { return Whole(Ids(write(n)), make, logprobs); }};
}

// The other side: what `bench serve` makes of a stream.
Work ReadStream(size_t n) {
  constexpr char kEvent[] = "data: {\"choices\":[{\"delta\":{\"content\":\"word \"}}]}\n\n";
  return [text = Times(n, kEvent)] {
    Answer answer;
    AnswerReader reader(&answer, /*chat=*/true);
    reader.Feed(text, 1);
    BT_CHECK(answer.error.empty() && !answer.text.empty());
  };
}

}  // namespace

std::vector<WorkCase> AnswerCases() {
  return {
      StreamCase("stream_thought", 100, Thought, Chat),
      StreamCase("stream_content", 100, Content, Chat),
      StreamCase("stream_calls", 20, Calls, Chat),
      StreamCase("stream_arguments", 100, Arguments, Chat),
      StreamCase("stream_blanks", 500, Blanks, Chat),
      StreamCase("stream_nearly_marks", 20, NearlyMarks, Chat),
      StreamCase("stream_noise", 100, Noise, Chat),
      StreamCase("stream_long_id", 1000, LongId, Chat),
      StreamCase("stream_messages_content", 100, Content, Messages),
      StreamCase("stream_messages_calls", 20, Calls, Messages),
      StreamCase("stream_messages_arguments", 50, Arguments, Messages),
      StreamCase("stream_responses_content", 100, Content, Responses),
      StreamCase("stream_responses_calls", 20, Calls, Responses),
      StreamCase("stream_responses_arguments", 50, Arguments, Responses),
      {"stream_read", 500, ReadStream},
      WholeCase("whole_chat", 200, Content, Chat),
      WholeCase("whole_chat_calls", 100, Calls, Chat),
      WholeCase("whole_completion_logprobs", 50, Content, Completion, /*logprobs=*/true),
      WholeCase("whole_messages_calls", 100, Calls, Messages),
      WholeCase("whole_responses_calls", 100, Calls, Responses),
  };
}

}  // namespace baltoro::work
