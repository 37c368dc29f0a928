#include "verify/verdict.h"

#include <gtest/gtest.h>

#include "verify/report.h"

namespace baltoro {
namespace {

// Twelve equal answers, everything compared.
Verified AllSame() {
  Verified out{.ours_url = "http://a",
               .theirs_url = "http://b",
               .ours_model = "m",
               .theirs_model = "m",
               .ours_can = {},
               .theirs_can = {},
               .asked = 12,
               .near_tie = 0.5,
               .tolerance = 0.1};
  out.ours_can.logprobs = out.theirs_can.logprobs = true;
  for (int i = 0; i < 12; ++i) {
    PromptComparison prompt;
    prompt.id = std::to_string(i);
    prompt.answered = prompt.equal = true;
    prompt.tokens = TokensCompared::kIds;
    prompt.own.Add(-1, -1.01);
    out.prompts.push_back(prompt);
  }
  return out;
}

TEST(VerdictTest, EqualAnswersAreTheSame) {
  const Conclusion out = Conclude(AllSame());
  EXPECT_EQ(out.sentence, "verdict: same");
  EXPECT_EQ(ExitCodeOf(out.sameness), 0);
  EXPECT_EQ(out.equal, 12U);
  EXPECT_TRUE(out.not_compared.empty());
}

TEST(VerdictTest, NearTiesAreNoError) {
  Verified verified = AllSame();
  verified.prompts[3].equal = false;
  verified.prompts[3].parting = Parting{.at = 1, .near = true};
  const Conclusion out = Conclude(verified);
  EXPECT_EQ(out.sentence, "verdict: same up to near ties (1)");
  EXPECT_EQ(ExitCodeOf(out.sameness), 0);
}

TEST(VerdictTest, ReasonsComeWorstFirst) {
  Verified verified = AllSame();
  verified.prompts[1].findings.push_back({FindingKind::kAnswer, "1", "other words"});
  verified.prompts[2].findings.push_back({FindingKind::kPromptTokens, "2", "other tokens"});
  verified.prompts[4].own.Add(-1, -9);
  const Conclusion out = Conclude(verified);
  EXPECT_EQ(out.sentence, "verdict: differs: prompt tokens (1), answer (1), log-probabilities (1)");
  EXPECT_EQ(ExitCodeOf(out.sameness), 1);
  EXPECT_EQ(out.tokens_same, 11U);
  EXPECT_EQ(out.findings[0].prompt, "2");
  EXPECT_NE(out.findings[2].said.find("largest 8.00"), std::string::npos);
}

TEST(VerdictTest, WhatWasNotComparedIsSaid) {
  Verified verified = AllSame();
  verified.prompts.resize(2);
  verified.asked = 2;
  verified.theirs_can = {.logprobs_why = "400: no"};
  for (PromptComparison& prompt : verified.prompts) {
    prompt.own = {};
    prompt.tokens = TokensCompared::kNo;
    prompt.tokens_why = "theirs: /tokenize: 404";
  }
  const Conclusion out = Conclude(verified);
  EXPECT_EQ(out.sameness, Sameness::kSame);
  EXPECT_EQ(out.sentence,
            "verdict: same; too little was compared to be sure: 2 of 2 prompts were answered by "
            "both; 10 are few; no prompt's tokens were compared; no log-probabilities were "
            "compared, so that equal answers may hide other weights");
  ASSERT_EQ(out.not_compared.size(), 2U);
  EXPECT_EQ(out.not_compared[0], "not compared: log-probabilities of answers: theirs: 400: no");
  EXPECT_EQ(out.not_compared[1],
            "not compared: the prompt's tokens of 2 prompts: theirs: /tokenize: 404");
  EXPECT_NE(ReportLines(verified, out).find(out.not_compared[1]), std::string::npos);
  EXPECT_NE(ReportMarkdown(verified, out).find("## Not compared"), std::string::npos);
}

TEST(VerdictTest, NothingIsNoSuccess) {
  Verified verified = AllSame();
  for (PromptComparison& prompt : verified.prompts) {
    prompt.answered = prompt.equal = false;
    prompt.refused = "ours: 400; theirs: 400";
  }
  const Conclusion out = Conclude(verified);
  EXPECT_EQ(out.sameness, Sameness::kNothing);
  EXPECT_EQ(ExitCodeOf(out.sameness), 1);
  EXPECT_EQ(out.refused, 12U);
}

TEST(VerdictTest, TimesAreOfTheStreams) {
  const Answer fast{.ttft = 0.1, .latency = 0.5, .output_tokens = 5};
  const Answer slow{.ttft = 0.3, .latency = 0.3, .output_tokens = 1};
  const Times times = Summary({TimesOf(fast), TimesOf(slow)});
  EXPECT_DOUBLE_EQ(times.ttft_median, 200);
  EXPECT_DOUBLE_EQ(times.tpot_median, 100);
  EXPECT_EQ(times.answers, 2U);
}

TEST(ReportTest, WhatOthersWroteIsTextInMarkdown) {
  Verified verified = AllSame();
  verified.prompts[0].findings.push_back({FindingKind::kAnswer, "a|b", "<b>*x*</b>"});
  const std::string text = ReportMarkdown(verified, Conclude(verified));
  EXPECT_NE(text.find("a\\|b: \\<b>\\*x\\*\\</b>"), std::string::npos) << text;
  const Json json = ReportJson(verified, Conclude(verified));
  EXPECT_EQ(json["verdict"], "differs");
  EXPECT_EQ(json["each"][0]["findings"][0]["kind"], "answer");
}

}  // namespace
}  // namespace baltoro
