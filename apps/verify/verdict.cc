#include "verify/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "bench/statistics.h"

namespace baltoro {
namespace {

constexpr size_t kEnoughPrompts = 10;

void Count(const PromptComparison& prompt, Conclusion& out) {
  out.answered += prompt.answered ? 1 : 0;
  out.refused += prompt.refused.empty() ? 0 : 1;
  out.ours_varies += prompt.ours_varies ? 1 : 0;
  out.theirs_varies += prompt.theirs_varies ? 1 : 0;
  out.given_prompt.Add(prompt.given_prompt);
  out.given_answer.Add(prompt.given_answer);
  out.own.Add(prompt.own);
  if (prompt.tokens == TokensCompared::kIds) ++out.ids_compared;
  if (prompt.tokens == TokensCompared::kCounts) ++out.counts_compared;
  const bool other_tokens = std::ranges::any_of(prompt.findings, [](const Finding& finding) {
    return finding.kind == FindingKind::kPromptTokens;
  });
  if (prompt.tokens != TokensCompared::kNo && !other_tokens) ++out.tokens_same;
  out.findings.insert(out.findings.end(), prompt.findings.begin(), prompt.findings.end());
  if (!prompt.answered) return;
  if (prompt.equal) {
    ++out.equal;
  } else if (prompt.parting && prompt.parting->near) {
    ++out.near_ties;
  } else {
    ++out.parted;
  }
}

void JudgeLogprobs(const LogprobDifference& difference,
                   const char* of,
                   double tolerance,
                   Conclusion& out) {
  if (difference.mean() <= tolerance) return;
  out.findings.push_back(
      {FindingKind::kLogprobs, "",
       fmt::format("log-probabilities of {} differ by {:.3f} nats in the mean (largest {:.2f}, {} "
                   "tokens); {:g} is the tolerance",
                   of, difference.mean(), difference.largest, difference.tokens, tolerance)});
}

// Reasons that are the same for many prompts become one line.
void ListReasons(const char* what, const std::map<std::string, size_t>& reasons, Conclusion& out) {
  for (const auto& [why, count] : reasons) {
    out.not_compared.push_back(fmt::format("not compared: {} of {} prompt{}: {}", what, count,
                                           count == 1 ? "" : "s", why));
  }
}

void ListNotCompared(const Verified& verified, Conclusion& out) {
  for (const auto& [name, can] :
       {std::pair("ours", &verified.ours_can), std::pair("theirs", &verified.theirs_can)}) {
    if (!can->logprobs) {
      out.not_compared.push_back(fmt::format("not compared: log-probabilities of answers: {}: {}",
                                             name, can->logprobs_why));
    }
  }
  std::map<std::string, size_t> tokens, counts, given, refused;
  for (const PromptComparison& prompt : verified.prompts) {
    if (prompt.tokens == TokensCompared::kNo) ++tokens[prompt.tokens_why];
    if (prompt.tokens == TokensCompared::kCounts) ++counts[prompt.tokens_why];
    if (!prompt.given_why.empty()) ++given[prompt.given_why];
    if (!prompt.refused.empty()) ++refused["both refuse it: " + prompt.refused];
  }
  ListReasons("the prompt's tokens", tokens, out);
  ListReasons("the prompt's tokens but for their number", counts, out);
  ListReasons("log-probabilities of a given text", given, out);
  ListReasons("everything", refused, out);
}

void ListTooLittle(const Verified& verified, Conclusion& out) {
  if (verified.interrupted)
    out.too_little.push_back(fmt::format("the run was interrupted after {} of {} prompts",
                                         verified.prompts.size(), verified.asked));
  if (out.answered < kEnoughPrompts) {
    out.too_little.push_back(fmt::format("{} of {} prompts were answered by both; {} are few",
                                         out.answered, out.asked, kEnoughPrompts));
  } else if (2 * out.answered < out.asked) {
    out.too_little.push_back(
        fmt::format("only {} of {} prompts were answered by both", out.answered, out.asked));
  }
  if (out.ids_compared + out.counts_compared == 0) {
    out.too_little.push_back("no prompt's tokens were compared");
  }
  if (out.given_prompt.tokens + out.given_answer.tokens + out.own.tokens == 0) {
    out.too_little.push_back(
        "no log-probabilities were compared, so that equal answers may hide "
        "other weights");
  }
}

std::string SentenceOf(const Conclusion& out) {
  std::string text = fmt::format("verdict: {}", NameOf(out.sameness));
  if (out.sameness == Sameness::kNearTies) text += fmt::format(" ({})", out.near_ties);
  if (out.sameness == Sameness::kDiffers) {
    std::vector<FindingKind> kinds;  // findings are sorted by them
    for (const Finding& finding : out.findings) {
      if (kinds.empty() || kinds.back() != finding.kind) kinds.push_back(finding.kind);
    }
    text += ": ";
    for (size_t i = 0; i < kinds.size(); ++i) {
      const auto count = std::ranges::count_if(
          out.findings, [&](const Finding& finding) { return finding.kind == kinds[i]; });
      text += fmt::format("{}{} ({})", i == 0 ? "" : ", ", NameOf(kinds[i]), count);
    }
  }
  for (size_t i = 0; i < out.too_little.size(); ++i) {
    text += (i == 0 ? "; too little was compared to be sure: " : "; ") + out.too_little[i];
  }
  return text;
}

}  // namespace

const char* NameOf(Sameness sameness) {
  switch (sameness) {
    case Sameness::kSame:
      return "same";
    case Sameness::kNearTies:
      return "same up to near ties";
    case Sameness::kDiffers:
      return "differs";
    case Sameness::kNothing:
      return "nothing was compared";
  }
  return "";
}

int ExitCodeOf(Sameness sameness) {
  return sameness == Sameness::kSame || sameness == Sameness::kNearTies ? 0 : 1;
}

Conclusion Conclude(const Verified& verified) {
  Conclusion out;
  out.asked = verified.asked;
  for (const PromptComparison& prompt : verified.prompts) Count(prompt, out);
  JudgeLogprobs(out.given_prompt, "given prompts", verified.tolerance, out);
  JudgeLogprobs(out.given_answer, "given answers", verified.tolerance, out);
  JudgeLogprobs(out.own, "the answers up to where they part", verified.tolerance, out);
  std::ranges::stable_sort(out.findings, {}, &Finding::kind);
  ListNotCompared(verified, out);
  ListTooLittle(verified, out);
  out.sameness = !out.findings.empty() ? Sameness::kDiffers
                 : out.answered == 0   ? Sameness::kNothing
                 : out.near_ties > 0   ? Sameness::kNearTies
                                       : Sameness::kSame;
  out.sentence = SentenceOf(out);
  return out;
}

StreamTimes TimesOf(const Answer& answer) {
  StreamTimes out{.ttft = 1000 * answer.ttft};
  if (answer.output_tokens > 1) {
    out.tpot =
        1000 * (answer.latency - answer.ttft) / static_cast<double>(answer.output_tokens - 1);
  }
  return out;
}

Times Summary(const std::vector<StreamTimes>& answers) {
  std::vector<double> ttft, tpot;
  for (const StreamTimes& answer : answers) {
    ttft.push_back(answer.ttft);
    if (answer.tpot >= 0) tpot.push_back(answer.tpot);
  }
  std::ranges::sort(ttft);
  std::ranges::sort(tpot);
  return {.answers = answers.size(),
          .ttft_median = PercentileOfSorted(ttft, 50),
          .ttft_p99 = PercentileOfSorted(ttft, 99),
          .tpot_median = PercentileOfSorted(tpot, 50),
          .tpot_p99 = PercentileOfSorted(tpot, 99)};
}

}  // namespace baltoro
