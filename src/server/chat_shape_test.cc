#include "server/chat_shape.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/utf8.h"
#include "server/choice_text.h"
#include "server/server_fixture.h"

namespace baltoro {
namespace {

// What a client has put together out of chunks, or reads in a whole message.
struct Message {
  struct Call {
    std::string id, name, arguments;
    bool operator==(const Call&) const = default;
  };
  std::string content, reasoning;
  std::vector<Call> calls;
  std::string finish;

  bool operator==(const Message&) const = default;
};

// The two names of the reasoning field must say the same.
void AddText(const Json& part, Message& out) {
  if (part.contains("content") && part["content"].is_string()) out.content += part["content"];
  if (!part.contains("reasoning") || !part["reasoning"].is_string()) return;
  out.reasoning += part["reasoning"];
  ASSERT_EQ(part["reasoning"], part["reasoning_content"]);
}

void AddChunk(const Json& chunk, Message& out) {
  const Json& choice = chunk["choices"][0];
  const Json& delta = choice["delta"];
  AddText(delta, out);
  if (!choice["finish_reason"].is_null()) out.finish = choice["finish_reason"];
  if (!delta.contains("tool_calls")) return;
  for (const Json& call : delta["tool_calls"]) {
    const auto index = call["index"].get<size_t>();
    if (call.contains("id")) {
      ASSERT_EQ(index, out.calls.size()) << "a call is announced once, in order";
      out.calls.push_back({call["id"], call["function"]["name"], ""});
    }
    ASSERT_LT(index, out.calls.size());
    out.calls[index].arguments += call["function"]["arguments"].get_ref<const std::string&>();
  }
}

Message OfChunks(const std::string& stream) {
  Message out;
  constexpr std::string_view kData = "data: ";
  for (size_t begin = 0; begin < stream.size();) {
    const size_t end = stream.find("\n\n", begin);
    EXPECT_EQ(stream.substr(begin, kData.size()), kData);
    const std::string event = stream.substr(begin + kData.size(), end - begin - kData.size());
    begin = end + 2;
    if (event == "[DONE]") continue;
    EXPECT_TRUE(IsValidUtf8(event));
    AddChunk(Json::parse(event), out);
  }
  return out;
}

Message OfWhole(const std::string& body) {
  const Json choice = Json::parse(body)["choices"][0];
  const Json& message = choice["message"];
  Message out;
  AddText(message, out);
  for (const Json& call : message["tool_calls"]) {
    out.calls.push_back(
        {call["id"], call["function"]["name"], call["function"]["arguments"].get<std::string>()});
  }
  out.finish = choice["finish_reason"];
  return out;
}

// Any output, in any pieces: the chunks join to the whole message.
TEST(ChatShapeTest, ChunksJoinToTheWholeMessage) {
  auto loaded = Tokenizer::Load(test::kPocketDir);
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  const Tokenizer& tokenizer = *loaded.value();
  std::vector<std::vector<TokenId>> pieces;
  for (const char* text :
       {"<think>", "</think>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
        "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|im_end|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
        "<|tool_call_begin|>g.h-i:3<|tool_call_argument_begin|>{\"a\": \"\\n\"}<|tool_call_end|>",
        "<|tool_call_begin|>f:7<|tool_call_argument_begin|>[1]<|tool_call_end|>", "Hello ",
        "日本"}) {
    pieces.push_back(tokenizer.EncodeWithSpecials(text));
  }
  std::mt19937 random(29);
  const char* const wanted = std::getenv("BALTORO_LONG");
#ifdef __SANITIZE_ADDRESS__
  constexpr int kRoundsOfShort = 10'000;  // sanitized, 50,000 take over a minute
#else
  constexpr int kRoundsOfShort = 50'000;
#endif
  const int rounds = wanted != nullptr && *wanted == '1' ? 1'000'000 : kRoundsOfShort;
  int calls = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<TokenId> ids;
    for (size_t n = random() % 12; n > 0; --n) {
      if (random() % 3 == 0) {
        ids.push_back(static_cast<TokenId>(random() % test::kTestVocabulary));
      } else {
        const auto& piece = pieces[random() % pieces.size()];
        ids.insert(ids.end(), piece.begin(), piece.end());
      }
    }
    EventParserOptions options;
    options.starts_in_reasoning = random() % 2 == 0;
    options.skip_special_tokens = random() % 4 != 0;
    options.tools = random() % 8 != 0;
    if (random() % 2 == 0) options.first_call_index = 5;
    const StopMatcher stops(
        random() % 4 == 0 ? std::vector<std::string>{"lo", "本"} : std::vector<std::string>{},
        random() % 2 == 0);
    const auto shape = MakeChatShape(tokenizer, {.id = "chatcmpl-1",
                                                 .model = "m",
                                                 .include_reasoning = random() % 4 != 0,
                                                 .parallel_tool_calls = random() % 4 != 0});
    ChoiceState state;
    std::string stream;
    {
      ChoiceText text(tokenizer, options, stops, 0);
      shape->Begin(state, nullptr, stream);
      std::vector<OutputEvent> events;
      for (size_t at = 0; at < ids.size() && text.stop_string() == nullptr;) {
        const size_t size = std::min<size_t>(1 + random() % 8, ids.size() - at);
        text.Push(std::span(ids).subspan(at, size), events);
        at += size;
        if (!events.empty()) shape->Delta(state, {events, {}, {}}, nullptr, stream);
        events.clear();
      }
      text.Finish(events);
      if (!events.empty()) shape->Delta(state, {events, {}, {}}, nullptr, stream);
      state.end.finish_reason = text.saw_tool_call() ? "tool_calls" : "stop";
      shape->End(state, nullptr, stream);
      shape->CloseStream({}, false, stream);
    }
    ChoiceText text(tokenizer, options, stops, 0);
    text.Push(ids, state.events);
    text.Finish(state.events);

    const Message got = OfChunks(stream);
    ASSERT_EQ(got, OfWhole(shape->Whole({state}, {})))
        << round << ": " << tokenizer.Decode(ids, false) << "\n"
        << stream;
    calls += static_cast<int>(got.calls.size());
  }
  EXPECT_GT(calls, rounds / 4);
}

}  // namespace
}  // namespace baltoro
