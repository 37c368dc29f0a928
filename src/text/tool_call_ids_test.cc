#include "text/tool_call_ids.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace baltoro {
namespace {

Json Assistant(std::initializer_list<std::pair<const char*, const char*>> calls) {
  Json message = {{"role", "assistant"}, {"content", nullptr}, {"tool_calls", Json::array()}};
  for (const auto& [id, name] : calls) {
    message["tool_calls"].push_back(
        {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", "{}"}}}});
  }
  return message;
}

Json Result(const char* id) {
  Json message = {{"role", "tool"}, {"content", "done"}};
  if (id != nullptr) message["tool_call_id"] = id;
  return message;
}

Json Named(const char* id, const char* name) {
  Json message = Result(id);
  message["name"] = name;
  return message;
}

// The ids in order, calls and results alike.
std::string Ids(Json messages) {
  NormaliseToolCallIds(messages);
  std::string out;
  for (const Json& message : messages) {
    if (message.contains("tool_calls")) {
      for (const Json& call : message["tool_calls"]) out += call["id"].get<std::string>() + " ";
    }
    if (message["role"] == "tool") {
      out += '<';
      out += message.value("tool_call_id", "none");
      out += "> ";
    }
  }
  return out;
}

// Guessing looks at each call once, not at all of them for each result.
TEST(ToolCallIdsTest, AHundredThousandResultsThatNameNothingAreAnsweredInOrder) {
  constexpr int kCalls = 100'000;
  Json call = Assistant({{"x", "f"}});
  const Json one = call["tool_calls"][0];
  for (int i = 1; i < kCalls; ++i) call["tool_calls"].push_back(one);
  Json messages = {std::move(call)};
  for (int i = 0; i < kCalls; ++i) messages.push_back(Named(nullptr, i % 2 == 0 ? "f" : "g"));

  EXPECT_EQ(NormaliseToolCallIds(messages), kCalls);

  EXPECT_EQ(messages[1]["tool_call_id"], "functions.f:0");
  EXPECT_EQ(messages[kCalls]["tool_call_id"], "functions.f:99999");
}

TEST(ToolCallIdsTest, IndexesCountOverTheConversation) {
  const Json user = {{"role", "user"}, {"content", "hi"}};
  Json messages = {user,
                   Assistant({{"call_1", "a.b"}, {"call_2", "c"}}),
                   Result("call_1"),
                   Result("call_2"),
                   Assistant({{"x", "c"}}),
                   Result("x"),
                   user};
  EXPECT_EQ(CountToolCalls(messages), 3);
  EXPECT_EQ(NormaliseToolCallIds(messages), 3);
  EXPECT_EQ(Ids(messages),
            "functions.a.b:0 functions.c:1 <functions.a.b:0> <functions.c:1> functions.c:2 "
            "<functions.c:2> ");
}

TEST(ToolCallIdsTest, ResultsFindTheirCallInAnyOrder) {
  EXPECT_EQ(
      Ids({Assistant({{"p", "f"}, {"q", "g"}, {"r", "h"}}), Result("r"), Result("p"), Result("q")}),
      "functions.f:0 functions.g:1 functions.h:2 <functions.h:2> <functions.f:0> "
      "<functions.g:1> ");
}

TEST(ToolCallIdsTest, IdsThatAnApiRewroteAreTheSame) {
  EXPECT_EQ(Ids({Assistant({{"functions.Bash:0", "Bash"}}), Result("functions_Bash_0")}),
            "functions.Bash:0 <functions.Bash:0> ");
  EXPECT_EQ(Ids({Assistant({{"functions_a_b_0", "a.b"}, {"functions_c_1", "c"}}),
                 Result("functions.c:1"), Result("functions.a.b:0")}),
            "functions.a.b:0 functions.c:1 <functions.c:1> <functions.a.b:0> ");
}

TEST(ToolCallIdsTest, AnIdThatComesAgainIsTheLatestCall) {
  EXPECT_EQ(
      Ids({Assistant({{"same", "f"}}), Result("same"), Assistant({{"same", "g"}}), Result("same")}),
      "functions.f:0 <functions.f:0> functions.g:1 <functions.g:1> ");
  EXPECT_EQ(Ids({Assistant({{"same", "f"}, {"same", "f"}}), Result("same"), Result("same")}),
            "functions.f:0 functions.f:1 <functions.f:1> <functions.f:0> ");
}

TEST(ToolCallIdsTest, ResultsWithoutAKnownIdAnswerInOrder) {
  EXPECT_EQ(Ids({Assistant({{"a", "f"}, {"b", "g"}}), Result(nullptr), Result(nullptr)}),
            "functions.f:0 functions.g:1 <functions.f:0> <functions.g:1> ");
  EXPECT_EQ(Ids({Assistant({{"a", "f"}, {"b", "g"}}), Result("unknown"), Result("a")}),
            "functions.f:0 functions.g:1 <functions.g:1> <functions.f:0> ");
  EXPECT_EQ(Ids({Assistant({{"a", "f"}, {"b", "g"}}), Named("?", "g"), Named("??", "f")}),
            "functions.f:0 functions.g:1 <functions.g:1> <functions.f:0> ");
  // Only the calls of the turn before: what was left unanswered earlier stays so.
  EXPECT_EQ(Ids({Assistant({{"a", "f"}}), Assistant({{"b", "g"}}), Result(nullptr)}),
            "functions.f:0 functions.g:1 <functions.g:1> ");
}

TEST(ToolCallIdsTest, WhatAnswersNothingKeepsItsId) {
  EXPECT_EQ(Ids({Result("alone"), Result(nullptr)}), "<alone> <none> ");
  EXPECT_EQ(Ids({Assistant({{"a", "f"}}), Result("a"), Result("b")}),
            "functions.f:0 <functions.f:0> <b> ");
}

TEST(ToolCallIdsTest, NormalisingTwiceChangesNothing) {
  std::mt19937 random(3);
  for (int round = 0; round < 2000; ++round) {
    Json messages = Json::array();
    const char* ids[] = {"a", "b", "functions.f:1", "functions_f_0", ""};
    for (size_t n = random() % 8; n > 0; --n) {
      switch (random() % 3) {
        case 0:
          messages.push_back({{"role", "user"}, {"content", "x"}});
          break;
        case 1:
          messages.push_back(Assistant({{ids[random() % 5], "f"}, {ids[random() % 5], "g"}}));
          break;
        default:
          messages.push_back(Result(ids[random() % 5]));
      }
    }
    NormaliseToolCallIds(messages);
    std::set<std::string> calls;
    for (const Json& message : messages) {
      if (!message.contains("tool_calls")) continue;
      for (const Json& call : message["tool_calls"]) {
        EXPECT_TRUE(calls.insert(call["id"].get<std::string>()).second);
      }
    }
    Json again = messages;
    NormaliseToolCallIds(again);
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i]["role"] == "assistant") {
        EXPECT_EQ(again[i], messages[i]);
      }
    }
  }
}

}  // namespace
}  // namespace baltoro
