#include "server/choice_text.h"

#include <gtest/gtest.h>

#include <random>

#include "server/server_fixture.h"

namespace baltoro {
namespace {

class ChoiceTextTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = Tokenizer::Load(test::kPocketDir);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    tokenizer_ = std::move(loaded).value();
  }

  std::vector<TokenId> Ids(const std::string& text) const {
    return tokenizer_->EncodeWithSpecials(text);
  }

  struct Outcome {
    std::string reasoning, content, calls;
    size_t taken = 0;
    std::string stop;

    bool operator==(const Outcome&) const = default;
  };

  // Pushes `ids` in groups of the given sizes (the last one again and again).
  Outcome Run(const std::vector<TokenId>& ids,
              const std::vector<size_t>& sizes,
              const StopMatcher& stops,
              int32_t min_tokens = 0) const {
    ChoiceText text(*tokenizer_, {.starts_in_reasoning = true}, stops, min_tokens);
    Outcome out;
    std::vector<OutputEvent> events;
    const auto take = [&] {
      for (const OutputEvent& event : events) {
        if (event.kind == OutputEventKind::kReasoning) {
          out.reasoning += event.text;
        } else if (event.kind == OutputEventKind::kContent) {
          out.content += event.text;
        } else if (event.kind == OutputEventKind::kToolCallBegin) {
          out.calls += "[" + event.text + " ";
        } else if (event.kind == OutputEventKind::kToolCallArguments) {
          out.calls += event.text;
        } else {
          out.calls += "]";
        }
      }
      events.clear();
    };
    size_t group = 0;
    for (size_t i = 0; i < ids.size() && text.stop_string() == nullptr;) {
      const size_t size = std::min(sizes[std::min(group++, sizes.size() - 1)], ids.size() - i);
      out.taken += text.Push(std::span(ids).subspan(i, size), events);
      i += size;
      take();
    }
    text.Finish(events);
    take();
    if (text.stop_string() != nullptr) out.stop = *text.stop_string();
    return out;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(ChoiceTextTest, AStopStringEndsTheTextWhereItBegins) {
  const std::vector<TokenId> ids = Ids("why</think>one two three");

  const Outcome out = Run(ids, {1}, StopMatcher({"two"}, false));

  EXPECT_EQ(out.reasoning, "why");
  EXPECT_EQ(out.content, "one ");
  EXPECT_EQ(out.stop, "two");
  EXPECT_LT(out.taken, ids.size());
}

TEST_F(ChoiceTextTest, AStopStringIsShownWhenAskedFor) {
  const Outcome out = Run(Ids("</think>one two three"), {1}, StopMatcher({"two"}, true));

  EXPECT_EQ(out.content, "one two");
}

TEST_F(ChoiceTextTest, ReasoningIsNotSearched) {
  const Outcome out = Run(Ids("one two</think>three two four"), {1}, StopMatcher({"two"}, false));

  EXPECT_EQ(out.reasoning, "one two");
  EXPECT_EQ(out.content, "three ");
  EXPECT_EQ(out.stop, "two");
}

TEST_F(ChoiceTextTest, ReasoningAloneNeverStops) {
  const Outcome out = Run(Ids("one two three"), {1}, StopMatcher({"two"}, false));

  EXPECT_EQ(out.reasoning, "one two three");
  EXPECT_EQ(out.stop, "");
}

TEST_F(ChoiceTextTest, NothingMatchesAcrossACall) {
  const std::string call =
      "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
      "{}<|tool_call_end|><|tool_calls_section_end|>";

  const Outcome out =
      Run(Ids("</think>one t" + call + "wo three"), {1}, StopMatcher({"two"}, false));

  EXPECT_EQ(out.content, "one two three");
  EXPECT_EQ(out.calls, "[functions.f:0 {}]");
  EXPECT_EQ(out.stop, "");
}

TEST_F(ChoiceTextTest, NothingMatchesAcrossTheEndOfReasoning) {
  const Outcome out = Run(Ids("one t</think>wo three"), {1}, StopMatcher({"two"}, false));

  EXPECT_EQ(out.reasoning, "one t");
  EXPECT_EQ(out.content, "wo three");
}

TEST_F(ChoiceTextTest, ToolCallsAreNeverCut) {
  const Outcome out = Run(
      Ids("</think><|tool_calls_section_begin|><|tool_call_begin|>functions.f:0"
          "<|tool_call_argument_begin|>{\"a\":\"two\"}<|tool_call_end|><|tool_calls_section_end|>"),
      {1}, StopMatcher({"two"}, false));

  EXPECT_EQ(out.calls, "[functions.f:0 {\"a\":\"two\"}]");
  EXPECT_EQ(out.stop, "");
}

TEST_F(ChoiceTextTest, BelowMinTokensNothingStops) {
  const std::vector<TokenId> ids = Ids("</think>xxyyxx");
  ASSERT_GE(ids.size(), 3u);
  const std::vector<TokenId> first = Ids("</think>xx");

  const Outcome out = Run(ids, {1}, StopMatcher({"xx"}, false), static_cast<int32_t>(first.size()));

  EXPECT_EQ(out.content, "xxyy");
  EXPECT_EQ(out.stop, "xx");
}

TEST_F(ChoiceTextTest, TokensOfOneStepComeAsOneEvent) {
  ChoiceText text(*tokenizer_, {}, StopMatcher({}, false), 0);
  std::vector<OutputEvent> events;

  text.Push(Ids("several words of text"), events);

  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].text, "several words of text");
}

// Any tokens at all, in any grouping, give the same text; that is what makes a streamed answer
// equal the whole one.
TEST_F(ChoiceTextTest, TheSplitIntoStepsDoesNotMatter) {
  std::mt19937 random(7);
  const std::vector<TokenId> marks =
      Ids("</think><|tool_calls_section_begin|><|tool_call_begin|><|tool_call_argument_begin|>"
          "<|tool_call_end|><|tool_calls_section_end|><think>");
  const std::vector<TokenId> call =
      Ids("<|tool_calls_section_begin|><|tool_call_begin|>functions.look_up:3"
          "<|tool_call_argument_begin|>{\"q\": \"é\"}<|tool_call_end|><|tool_calls_section_end|>");
  for (int round = 0; round < 300; ++round) {
    std::vector<TokenId> ids;
    while (ids.size() < 60) {
      const auto what = random() % 12;
      if (what == 0) {
        ids.push_back(marks[random() % marks.size()]);
      } else if (what == 1) {
        ids.insert(ids.end(), call.begin(), call.end());
      } else {
        ids.push_back(static_cast<TokenId>(random() % 2304));
      }
    }
    // A stop string that often occurs, and one that is often begun.
    const StopMatcher stops({std::string(1, static_cast<char>('a' + random() % 26)) + " ", "eth"},
                            round % 2 == 0);
    const int32_t min_tokens = static_cast<int32_t>(random() % 20);
    const Outcome whole = Run(ids, {ids.size()}, stops, min_tokens);

    EXPECT_EQ(Run(ids, {1}, stops, min_tokens), whole) << "round " << round;
    for (int split = 0; split < 4; ++split) {
      std::vector<size_t> sizes;
      for (int i = 0; i < 60; ++i) sizes.push_back(1 + random() % 7);
      EXPECT_EQ(Run(ids, sizes, stops, min_tokens), whole) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace baltoro
