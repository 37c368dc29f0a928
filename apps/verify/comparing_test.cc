#include "verify/comparing.h"

#include <gtest/gtest.h>

#include "verify/parting.h"

namespace baltoro {
namespace {

using Tops = std::vector<std::pair<std::string, double>>;

// An answer of these tokens, whole and streamed; each is near the one that stands beside it.
Heard Said(const std::vector<std::string>& tokens, const Tops& others = {}) {
  Heard heard;
  for (size_t i = 0; i < tokens.size(); ++i) {
    heard.whole.content += tokens[i];
    TokenChance chance{.text = tokens[i], .logprob = -0.25, .top = {{tokens[i], -0.25}}};
    if (i < others.size()) chance.top.push_back(others[i]);
    heard.whole.chances.push_back(chance);
    heard.whole.ids.push_back(tokens[i].empty() ? 0 : tokens[i][0]);
  }
  heard.whole.finish_reason = "stop";
  heard.streamed.text = heard.whole.content;
  heard.streamed.success = true;
  heard.prompt_ids = {1, 2, 3};
  return heard;
}

PromptComparison Compared(const Heard& ours, const Heard& theirs, const Json& body = {}) {
  return Compare({.id = "p", .body = body}, ours, theirs, {}, {.near_tie = 0.5});
}

std::string Only(const PromptComparison& comparison, FindingKind kind) {
  EXPECT_EQ(comparison.findings.size(), 1U);
  if (comparison.findings.empty()) return "nothing was found";
  EXPECT_EQ(NameOf(comparison.findings[0].kind), NameOf(kind));
  return comparison.findings[0].said;
}

TEST(ComparingTest, EqualAnswersAreEqualAndTheirLogprobsAreCounted) {
  Heard theirs = Said({"a", "b"});
  theirs.whole.chances[1].logprob = -0.5;
  const PromptComparison out = Compared(Said({"a", "b"}), theirs);
  EXPECT_TRUE(out.equal);
  EXPECT_TRUE(out.findings.empty());
  EXPECT_EQ(out.tokens, TokensCompared::kIds);
  EXPECT_EQ(out.own.tokens, 2);
  EXPECT_DOUBLE_EQ(out.own.mean(), 0.125);
  EXPECT_DOUBLE_EQ(out.own.largest, 0.25);
}

TEST(ComparingTest, ANearTieIsNoFindingAndAFarOneIs) {
  const Heard ours = Said({"a", "b"}, {{"x", -9}, {"c", -0.5}});
  const PromptComparison near = Compared(ours, Said({"a", "c"}, {{"x", -9}, {"b", -0.7}}));
  EXPECT_TRUE(near.findings.empty());
  ASSERT_TRUE(near.parting.has_value());
  EXPECT_TRUE(near.parting->near);
  EXPECT_EQ(near.parting->at, 1);
  EXPECT_DOUBLE_EQ(near.parting->gap_ours.value(), 0.25);
  EXPECT_EQ(near.own.tokens, 1);

  const PromptComparison far = Compared(ours, Said({"a", "c"}, {{"x", -9}, {"b", -3}}));
  EXPECT_EQ(Only(far, FindingKind::kAnswer),
            "the answers differ from token 1 on (content): ours \"b\", theirs \"c\", which are "
            "0.25 nats apart on ours and 2.75 nats apart on theirs");
  // One of them does not even list the other's token.
  EXPECT_EQ(Compared(ours, Said({"a", "c"})).findings.size(), 1U);
}

TEST(ComparingTest, WithTheTokensOfOneTheTextOfTheOtherIsEnough) {
  Heard theirs = Said({"a", "cd"});
  theirs.whole.chances.clear();
  const PromptComparison near = Compared(Said({"a", "b"}, {{"x", -9}, {"c", -0.5}}), theirs);
  EXPECT_TRUE(near.findings.empty());
  EXPECT_DOUBLE_EQ(near.parting->gap_ours.value(), 0.25);
  EXPECT_EQ(Compared(Said({"a", "b"}, {{"x", -9}, {"c", -4}}), theirs).findings.size(), 1U);
  Heard ours = Said({"a", "b"});
  ours.whole.chances.clear();
  EXPECT_EQ(Only(Compared(ours, theirs), FindingKind::kAnswer),
            "the answers differ (content); how near a tie it is, no server tells");
}

TEST(ComparingTest, APartingInThinkingOrAtAnEndIsFoundInTheTokens) {
  ModelReply reply;
  for (const char* text : {"hm", "m", "</think>", "ok", "<|im_end|>"}) {
    reply.chances.push_back({.text = text, .logprob = -0.1});
  }
  reply.thinking = "hmm";
  reply.content = "ok";
  reply.chances[1].top = {{"</think>", -0.3}};
  reply.chances[4].top = {{"!", -0.5}};
  EXPECT_EQ(PartByText(reply, "hm", "ok", 0.5).at, 1);
  EXPECT_TRUE(PartByText(reply, "hm", "ok", 0.5).near);
  EXPECT_EQ(PartByText(reply, "hmm", "no", 0.5).at, 3);
  EXPECT_FALSE(PartByText(reply, "hmm", "no", 0.5).near);
  EXPECT_EQ(PartByText(reply, "hmm", "ok!", 0.5).at, 4);
  EXPECT_TRUE(PartByText(reply, "hmm", "ok!", 0.5).near);
  reply.thinking = "other";  // not among the tokens
  EXPECT_EQ(PartByText(reply, "x", "ok", 0.5).at, -1);
}

TEST(ComparingTest, TheSameTokensReadDifferentlyAreAFinding) {
  Heard theirs = Said({"a", "b"});
  theirs.whole.content = theirs.streamed.text = "b";
  theirs.whole.thinking = theirs.streamed.thinking = "a";
  EXPECT_EQ(Only(Compared(Said({"a", "b"}), theirs), FindingKind::kReading),
            "the same tokens are another message: thinking is on theirs alone, content");
}

TEST(ComparingTest, FailuresPromptTokensAndFinishReasonsAreNamed) {
  Heard dead = Said({});
  dead.whole_error = "500: boom";
  dead.streamed.success = false;
  EXPECT_EQ(Only(Compared(Said({"a"}), dead), FindingKind::kNoAnswer), "theirs: 500: boom");
  EXPECT_FALSE(Compared(Said({"a"}), dead).answered);

  dead.refused = true;
  EXPECT_EQ(Compared(dead, dead).refused, "ours: 500: boom; theirs: 500: boom");
  EXPECT_TRUE(Compared(dead, dead).findings.empty());

  Heard template_differs = Said({"a"});
  template_differs.prompt_ids = {1, 2, 4, 5};
  EXPECT_EQ(Only(Compared(Said({"a"}), template_differs), FindingKind::kPromptTokens),
            "the prompt's tokens differ from token 2 on (ours 3, theirs 4 tokens)");

  Heard counted = Said({"a"});
  counted.prompt_ids.clear();
  counted.whole.prompt_tokens = 3;
  Heard ours = Said({"a"});
  ours.whole.prompt_tokens = 4;
  EXPECT_EQ(Only(Compared(ours, counted), FindingKind::kPromptTokens),
            "the prompt has 4 tokens on ours and 3 on theirs");

  Heard cut = Said({"a"});
  cut.whole.finish_reason = "length";
  EXPECT_EQ(Only(Compared(Said({"a"}), cut), FindingKind::kFinish),
            "the same answer ends with \"stop\" on ours and \"length\" on theirs");
}

TEST(ComparingTest, AStreamIsHeldToTheWholeAnswer) {
  Heard broken = Said({"a"});
  broken.streamed.success = false;
  broken.streamed.error = "lost";
  EXPECT_EQ(Only(Compared(Said({"a"}), broken), FindingKind::kStream),
            "theirs: the streamed answer failed: lost");
  Heard other = Said({"a", "b"}, {{"x", -9}, {"c", -9}});
  other.streamed.text = "ac";
  EXPECT_EQ(Only(Compared(Said({"a", "b"}), other), FindingKind::kStream),
            "theirs: the streamed answer is another than the whole one from token 1 on: \"c\" "
            "where that has \"b\"");
  Heard varies = Said({"a", "b"}, {{"x", -9}, {"c", -0.3}});
  varies.streamed.text = "ac";
  EXPECT_TRUE(Compared(Said({"a", "b"}), varies).findings.empty());
  EXPECT_TRUE(Compared(Said({"a", "b"}), varies).theirs_varies);
}

TEST(ComparingTest, AGivenTextIsThePromptAndTheOthersAnswer) {
  Heard ours = Said({"a"}), theirs = Said({"b"});
  const GivenText given = ChooseGiven(ours, theirs).value();
  EXPECT_EQ(given.ids, (std::vector<int64_t>{1, 2, 3, 'b'}));
  ours.given = {0, -1, -2, -3};
  theirs.given = {0, -1, -2.5, -4};
  const PromptComparison out = Compare({.id = "p", .body = {}}, ours, theirs, given, {});
  EXPECT_EQ(out.given_prompt.tokens, 2);
  EXPECT_DOUBLE_EQ(out.given_prompt.sum, 0.5);
  EXPECT_DOUBLE_EQ(out.given_answer.largest, 1);
  theirs.given.clear();
  theirs.given_error = "404";
  EXPECT_EQ(Compare({.id = "p", .body = {}}, ours, theirs, given, {}).given_why, "theirs: 404");
  ours.prompt_ids.clear();
  theirs.prompt_ids.clear();
  EXPECT_FALSE(ChooseGiven(ours, theirs).ok());
}

}  // namespace
}  // namespace baltoro
