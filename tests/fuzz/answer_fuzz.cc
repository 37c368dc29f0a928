// Any tokens through the answers of every API, streamed in any pieces and whole. What is sent is
// always valid UTF-8 and JSON without repeated keys, and what a client puts together from a stream
// is what a whole answer says.
//
// The first byte chooses the API and what is shown, the second how the output is read, the third
// how it is cut; each later byte is a token.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/json.h"
#include "base/utf8.h"
#include "fuzz/byte_tokenizer.h"
#include "net/sse.h"
#include "server/chat_shape.h"
#include "server/choice_text.h"
#include "server/completion_shape.h"
#include "server/messages_shape.h"
#include "server/responses_shape.h"

namespace {

using namespace baltoro;  // NOLINT(google-build-using-namespace): a program of its own
using test::ByteTokenizer;

enum class Api { kChat, kCompletions, kMessages, kResponses };

struct Script {
  Api api = Api::kChat;
  int choices = 1;
  bool logprobs = false, token_ids = false, reasoning = false, parallel = false,
       names_as_ids = false;
  EventParserOptions parser;
  std::vector<std::string> stops;
  bool include_stop = false;
  std::vector<TokenId> ids;
  std::vector<TokenLogprobs> rows;  // one for each of `ids`
  uint32_t cut = 0;
};

Script Read(const uint8_t* data, size_t size) {
  Script out;
  const auto bit = [&](size_t byte, int place) { return (data[byte] >> place & 1) != 0; };
  out.api = static_cast<Api>(data[0] % 4);
  const bool many = out.api == Api::kChat || out.api == Api::kCompletions;
  out.choices = many && bit(0, 2) ? 2 : 1;
  out.logprobs = many && bit(0, 3);
  out.token_ids = many && bit(0, 4);
  out.reasoning = bit(0, 5);
  out.parallel = bit(0, 6);
  out.names_as_ids = bit(0, 7);
  // Text completions have neither thinking nor calls.
  out.parser.reasoning = out.api != Api::kCompletions && bit(1, 0);
  out.parser.tools = out.api != Api::kCompletions && bit(1, 1);
  out.parser.starts_in_reasoning = out.parser.reasoning && bit(1, 2);
  out.parser.skip_special_tokens = bit(1, 3);
  if (bit(1, 4)) out.parser.first_call_index = 3;
  if (bit(1, 5)) out.stops = {"ab", "\xC3\xA9", "}"};
  out.include_stop = bit(1, 6);
  out.cut = data[2];
  std::minstd_rand random(data[2] + 1u);
  constexpr float kOdd[] = {-0.5f, 0, -INFINITY, NAN, INFINITY, -1e-30f, -3e38f};
  for (size_t i = 3; i < size; ++i) {
    for (const TokenId id : test::MeaningOf(data[i])) {
      out.ids.push_back(id);
      TokenLogprobs& row = out.rows.emplace_back();
      row.push_back({id, kOdd[random() % std::size(kOdd)], 1});
      for (size_t n = random() % 4; n > 0; --n) {
        const auto other = static_cast<TokenId>(random() % 600) - 20;  // also of no token
        row.push_back({other, kOdd[random() % std::size(kOdd)], 2});
      }
    }
  }
  return out;
}

std::unique_ptr<ResponseShape> MakeShape(const Script& script) {
  switch (script.api) {
    case Api::kChat:
      return MakeChatShape(ByteTokenizer(), {.id = "chatcmpl-1",
                                             .model = "\x80\"m",
                                             .include_reasoning = script.reasoning,
                                             .parallel_tool_calls = script.parallel,
                                             .logprobs = script.logprobs,
                                             .return_token_ids = script.token_ids,
                                             .token_names_as_ids = script.names_as_ids});
    case Api::kCompletions:
      return MakeCompletionShape(ByteTokenizer(), {.id = "cmpl-1",
                                                   .model = "\x80\"m",
                                                   .logprobs = script.logprobs,
                                                   .return_token_ids = script.token_ids,
                                                   .token_names_as_ids = script.names_as_ids});
    case Api::kMessages:
      return MakeMessagesShape({.id = "msg_1",
                                .model = "\x80\"m",
                                .show_thinking = script.reasoning,
                                .parallel_tool_calls = script.parallel});
    case Api::kResponses:
      break;
  }
  return MakeResponsesShape({.id = "resp_1",
                             .name = "1",
                             .model = "\x80\"m",
                             .echo = {{"metadata", {{"a", "\x80"}}}},
                             .show_reasoning = script.reasoning,
                             .parallel_tool_calls = script.parallel});
}

void SetEnd(const ChoiceText& text, const Script& script, ChoiceState& state) {
  state.end.finish_reason = text.saw_tool_call() ? "tool_calls" : "stop";
  if (text.stop_string() != nullptr) {
    state.end.stop_string = *text.stop_string();
  } else if (script.cut % 3 == 0) {
    state.end.finish_reason = "length";
  }
}

// As Generation does: each choice in pieces of its own, the choices in turns.
std::string Stream(const Script& script, ResponseShape& shape, const Usage& usage) {
  struct Choice {
    ChoiceText text;
    ChoiceState state;
    size_t at = 0;
    bool done = false;
  };
  std::vector<Choice> choices;
  std::string out;
  for (int i = 0; i < script.choices; ++i) {
    choices.push_back({ChoiceText(ByteTokenizer(), script.parser,
                                  StopMatcher(script.stops, script.include_stop), 0),
                       {}});
    choices.back().state.index = i;
    shape.Begin(choices.back().state, &usage, out);
  }
  std::minstd_rand random(script.cut + 1);
  for (int left = script.choices; left > 0;) {
    Choice& choice = choices[random() % choices.size()];
    if (choice.done) continue;
    std::vector<OutputEvent> events;
    const size_t size = std::min<size_t>(1 + random() % 8, script.ids.size() - choice.at);
    const auto asked = std::span(script.ids).subspan(choice.at, size);
    const size_t taken = choice.text.Push(asked, events);
    const auto from = static_cast<std::ptrdiff_t>(choice.at);
    const auto to = from + static_cast<std::ptrdiff_t>(taken);
    choice.at += taken;
    choice.done = choice.text.stop_string() != nullptr || choice.at == script.ids.size();
    if (choice.done) choice.text.Finish(events);
    ChoiceDelta delta{events, {}, {}};
    if (script.token_ids) delta.tokens.assign(script.ids.begin() + from, script.ids.begin() + to);
    if (script.logprobs)
      delta.logprobs.assign(script.rows.begin() + from, script.rows.begin() + to);
    if (!events.empty() || !delta.tokens.empty() || !delta.logprobs.empty()) {
      shape.Delta(choice.state, delta, &usage, out);
    }
    if (!choice.done) continue;
    --left;
    SetEnd(choice.text, script, choice.state);
    shape.End(choice.state, &usage, out);
  }
  shape.CloseStream(usage, true, out);
  return out;
}

std::string Whole(const Script& script, ResponseShape& shape, const Usage& usage) {
  std::vector<ChoiceState> states;
  for (int i = 0; i < script.choices; ++i) {
    ChoiceText text(ByteTokenizer(), script.parser, StopMatcher(script.stops, script.include_stop),
                    0);
    ChoiceState& state = states.emplace_back();
    state.index = i;
    const size_t taken = text.Push(script.ids, state.events);
    text.Finish(state.events);
    const auto end = static_cast<std::ptrdiff_t>(taken);
    if (script.token_ids) state.tokens.assign(script.ids.begin(), script.ids.begin() + end);
    if (script.logprobs) state.logprobs.assign(script.rows.begin(), script.rows.begin() + end);
    SetEnd(text, script, state);
  }
  return shape.Whole(states, usage);
}

// Everything that is sent, as a client reads it.
Json Parsed(const std::string& text) {
  BT_CHECK(IsValidUtf8(text));
  auto parsed = ParseJson(text, {.depth = 100});  // arguments of depth 64 lie deeper in an answer
  BT_CHECK(parsed.ok());
  return std::move(parsed).value();
}

std::vector<std::pair<std::string, Json>> EventsOf(const std::string& stream, bool ends_in_done) {
  std::vector<std::pair<std::string, Json>> out;
  bool done = false;
  SseParser parser;
  parser.Feed(stream, [&](const SseEvent& event) {
    BT_CHECK(!done);
    done = event.data == "[DONE]";
    if (!done) out.emplace_back(event.event, Parsed(event.data));
    return true;
  });
  BT_CHECK(stream.ends_with("\n\n") && done == ends_in_done);
  return out;
}

void Join(Json& to, const Json& more) {
  if (more.is_null()) return;
  if (to.is_null()) {
    to = more;
  } else if (more.is_string()) {
    to.get_ref<std::string&>() += more.get_ref<const std::string&>();
  } else if (more.is_array()) {
    to.insert(to.end(), more.begin(), more.end());
  } else {
    for (const auto& [key, value] : more.items()) Join(to[key], value);
  }
}

// A choice of chat or completions in the words of both forms: texts, calls, tokens.
Json Plain(Json message, const Json& choice) {
  Json out = {{"finish", choice["finish_reason"]}, {"stop", choice["stop_reason"]}};
  for (const char* name : {"content", "reasoning", "reasoning_content", "text"}) {
    const Json text = message.contains(name) ? message[name] : Json();
    out[name] = text.is_null() ? Json("") : text;
  }
  out["calls"] = Json::array();
  if (message.contains("tool_calls")) {
    for (const Json& call : message["tool_calls"]) {
      out["calls"].push_back({call["id"], call["function"]["name"], call["function"]["arguments"]});
    }
  }
  out["ids"] = choice.contains("token_ids") ? choice["token_ids"] : Json();
  out["logprobs"] = choice["logprobs"];
  if (out["ids"].is_null()) out["ids"] = Json::array();
  return out;
}

// In a stream nothing is said of a choice without tokens; a whole answer has empty lists there.
Json WithoutEmptyLogprobs(Json plain) {
  Json& rows = plain["logprobs"];
  const bool any = rows.is_object() && std::any_of(rows.begin(), rows.end(), [](const Json& list) {
                     return list.is_array() && !list.empty();
                   });
  if (!any) rows = nullptr;
  return plain;
}

std::vector<Json> GatheredChoices(const std::vector<std::pair<std::string, Json>>& events,
                                  const Script& script) {
  std::vector<Json> choices(static_cast<size_t>(script.choices),
                            {{"message", {{"tool_calls", Json::array()}}}, {"logprobs", nullptr}});
  for (const auto& [name, chunk] : events) {
    BT_CHECK(name.empty());
    if (chunk["choices"].empty()) continue;
    const Json& from = chunk["choices"][0];
    Json& to = choices.at(from["index"].get<size_t>());
    BT_CHECK(!to.contains("finish_reason"));  // nothing comes after the end
    Json delta = from.contains("delta") ? from["delta"] : Json{{"text", from["text"]}};
    if (delta.contains("tool_calls")) {
      for (const Json& call : delta["tool_calls"]) {
        Json& calls = to["message"]["tool_calls"];
        const auto index = call["index"].get<size_t>();
        if (call.contains("id")) {
          BT_CHECK(index == calls.size());
          calls.push_back({{"id", call["id"]}, {"function", call["function"]}});
        } else {
          BT_CHECK(index < calls.size());
          Join(calls[index]["function"], call["function"]);
        }
      }
      delta.erase("tool_calls");
    }
    delta.erase("role");
    Join(to["message"], delta);
    Join(to["logprobs"], from["logprobs"]);
    if (from.contains("token_ids")) Join(to["token_ids"], from["token_ids"]);
    if (from["finish_reason"].is_null()) continue;
    to["finish_reason"] = from["finish_reason"];
    to["stop_reason"] = from["stop_reason"];
  }
  return choices;
}

void CheckChoices(const std::string& stream, const Json& whole, const Script& script) {
  const std::vector<Json> gathered = GatheredChoices(EventsOf(stream, true), script);
  BT_CHECK(whole["choices"].size() == gathered.size());
  for (size_t i = 0; i < gathered.size(); ++i) {
    const Json& choice = whole["choices"][i];
    const Json& message = choice.contains("message") ? choice["message"] : choice;
    const Json said = WithoutEmptyLogprobs(Plain(message, choice));
    BT_CHECK(said == WithoutEmptyLogprobs(Plain(gathered[i]["message"], gathered[i])));
    BT_CHECK(said["reasoning"] == said["reasoning_content"]);
  }
}

// Anthropic's blocks.
Json GatheredMessage(const std::vector<std::pair<std::string, Json>>& events) {
  Json message;
  bool open = false;
  for (const auto& [name, event] : events) {
    const std::string type = event["type"];
    BT_CHECK(name == type);
    if (type == "message_start") {
      message = event["message"];
    } else if (type == "content_block_start") {
      BT_CHECK(!std::exchange(open, true) && event["index"] == message["content"].size());
      message["content"].push_back(event["content_block"]);
      Json& block = message["content"].back();
      if (block["type"] == "tool_use") block["input"] = "";
    } else if (type == "content_block_delta") {
      BT_CHECK(open && event["index"] == message["content"].size() - 1);
      Json delta = event["delta"];
      if (delta.contains("partial_json")) delta["input"] = delta["partial_json"];
      delta.erase("type");
      delta.erase("partial_json");
      Join(message["content"].back(), delta);
    } else if (type == "content_block_stop") {
      BT_CHECK(std::exchange(open, false));
      Json& block = message["content"].back();
      if (block["type"] != "tool_use") continue;
      const std::string arguments = block["input"];
      const auto input = ParseJson(arguments.empty() ? "{}" : arguments);
      const bool object = input.ok() && input.value().is_object();
      block["input"] = object ? input.value() : Json{{"INVALID_JSON", arguments}};
    } else if (type == "message_delta") {
      BT_CHECK(!open);
      message.update(event["delta"]);
      message["usage"] = event["usage"];
    } else {
      BT_CHECK(type == "ping" || type == "message_stop");
    }
  }
  return message;
}

// OpenAI's items: what the deltas join to is what the items say, and the last event has all.
void CheckResponses(const std::string& stream, const Json& whole) {
  std::vector<std::string> texts;
  int64_t sequence = 0;
  const auto events = EventsOf(stream, false);
  for (const auto& [name, event] : events) {
    BT_CHECK(name == event["type"] && event["sequence_number"] == sequence++);
    if (name == "response.output_item.added") {
      BT_CHECK(event["output_index"] == texts.size());
      texts.emplace_back();
    } else if (name.ends_with(".delta")) {
      BT_CHECK(event["output_index"] == texts.size() - 1);
      texts.back() += event["delta"].get_ref<const std::string&>();
    }
  }
  BT_CHECK(events.back().second["response"] == whole);
  BT_CHECK(whole["output"].size() == texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const Json& item = whole["output"][i];
    const bool call = item["type"] == "function_call";
    BT_CHECK((call ? item["arguments"] : item["content"][0]["text"]) == texts[i]);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3 || size > 2000) return 0;
  const Script script = Read(data, size);
  const Usage usage = {.prompt_tokens = 7, .completion_tokens = 5, .cached_tokens = 2};
  const std::string stream = Stream(script, *MakeShape(script), usage);
  const Json whole = Parsed(Whole(script, *MakeShape(script), usage));
  switch (script.api) {
    case Api::kChat:
    case Api::kCompletions:
      CheckChoices(stream, whole, script);
      break;
    case Api::kMessages:
      BT_CHECK(GatheredMessage(EventsOf(stream, false)) == whole);
      break;
    case Api::kResponses:
      CheckResponses(stream, whole);
      break;
  }
  std::string failed;
  const std::string why(reinterpret_cast<const char*>(data), size);
  MakeShape(script)->FailStream(InternalError(why), failed);
  EventsOf(failed, script.api == Api::kChat || script.api == Api::kCompletions);
  return 0;
}
