#include "verify/comparing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "terminal/safe_text.h"
#include "verify/parting.h"
#include "verify/validity.h"

namespace baltoro {
namespace {

constexpr size_t kGivenTokensMax = 16384;

bool SameCalls(const std::vector<StreamedCall>& left, const std::vector<StreamedCall>& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const StreamedCall& a, const StreamedCall& b) {
                      return a.name == b.name && SameArguments(a.arguments, b.arguments);
                    });
}

// What of two messages is not the same, as words.
std::vector<std::string> Parts(const ModelReply& ours, const ModelReply& theirs) {
  std::vector<std::string> parts;
  if (ours.thinking.empty() != theirs.thinking.empty()) {
    parts.push_back(
        fmt::format("thinking is on {} alone", ours.thinking.empty() ? "theirs" : "ours"));
  } else if (ours.thinking != theirs.thinking) {
    parts.push_back("thinking");
  }
  if (ours.content != theirs.content) parts.push_back("content");
  if (!SameCalls(ours.calls, theirs.calls)) {
    parts.push_back(ours.calls.size() == theirs.calls.size()
                        ? "tool calls"
                        : fmt::format("tool calls (ours {}, theirs {})", ours.calls.size(),
                                      theirs.calls.size()));
  }
  return parts;
}

class Comparer {
 public:
  Comparer(const VerifyPrompt& prompt, const CompareLimits& limits)
      : prompt_(prompt), limits_(limits) {
    out_.id = prompt.id;
  }

  void Find(FindingKind kind, std::string said) {
    out_.findings.push_back({kind, prompt_.id, std::move(said)});
  }

  void Answered(const Heard& ours, const Heard& theirs) {
    if (ours.refused && theirs.refused) {
      out_.refused = fmt::format("ours: {}; theirs: {}", ours.whole_error, theirs.whole_error);
      return;
    }
    for (const auto& [name, heard] : {std::pair("ours", &ours), std::pair("theirs", &theirs)}) {
      if (!heard->whole_error.empty()) {
        Find(FindingKind::kNoAnswer, fmt::format("{}: {}", name, heard->whole_error));
      } else {
        out_.answered = true;
      }
    }
    out_.answered = ours.whole_error.empty() && theirs.whole_error.empty();
  }

  void PromptTokens(const Heard& ours, const Heard& theirs) {
    if (!ours.prompt_ids.empty() && !theirs.prompt_ids.empty()) {
      out_.tokens = TokensCompared::kIds;
      const auto [left, right] = std::mismatch(ours.prompt_ids.begin(), ours.prompt_ids.end(),
                                               theirs.prompt_ids.begin(), theirs.prompt_ids.end());
      if (left == ours.prompt_ids.end() && right == theirs.prompt_ids.end()) return;
      Find(FindingKind::kPromptTokens,
           fmt::format("the prompt's tokens differ from token {} on (ours {}, theirs {} tokens)",
                       left - ours.prompt_ids.begin(), ours.prompt_ids.size(),
                       theirs.prompt_ids.size()));
      return;
    }
    out_.tokens_why = !ours.prompt_ids.empty() ? "theirs: " + theirs.prompt_ids_error
                                               : "ours: " + ours.prompt_ids_error;
    const int64_t left = ours.whole.prompt_tokens, right = theirs.whole.prompt_tokens;
    if (left < 0 || right < 0) return;
    out_.tokens = TokensCompared::kCounts;
    if (left == right) return;
    Find(FindingKind::kPromptTokens,
         fmt::format("the prompt has {} tokens on ours and {} on theirs", left, right));
  }

  // Of one server alone.
  void Valid(const char* name, const Heard& heard) {
    if (!heard.whole_error.empty()) return;
    const ModelReply& whole = heard.whole;
    bool wrong = false;
    if (whole.finish_reason != "length") {
      for (const std::string& why : WrongCalls(prompt_.body, whole.calls)) {
        Find(FindingKind::kWrongCall, fmt::format("{}: {}", name, why));
        wrong = true;
      }
      const std::string why = whole.calls.empty() ? WrongForm(prompt_.body, whole.content) : "";
      if (!why.empty()) Find(FindingKind::kWrongForm, fmt::format("{}: {}", name, why));
    }
    if (!heard.streamed.success) {
      return Find(FindingKind::kStream,
                  fmt::format("{}: the streamed answer failed: {}", name, heard.streamed.error));
    }
    if (wrong || heard.streamed.finish_reason == "length") return;
    for (const std::string& why : WrongCalls(prompt_.body, heard.streamed.calls)) {
      Find(FindingKind::kWrongCall, fmt::format("{}: in the stream {}", name, why));
    }
  }

  // Whether one server streams what it says otherwise; true where it varies by a near tie.
  bool Varies(const char* name, const Heard& heard) {
    if (!heard.whole_error.empty() || !heard.streamed.success) return false;
    const Answer& streamed = heard.streamed;
    const ModelReply& whole = heard.whole;
    if (whole.content == streamed.text && whole.thinking == streamed.thinking) {
      if (whole.calls.empty() == streamed.calls.empty()) {
        return !SameCalls(whole.calls, streamed.calls);
      }
      Find(FindingKind::kStream, fmt::format("{}: {} tool calls in the stream, {} in the whole "
                                             "answer, with the same text",
                                             name, streamed.calls.size(), whole.calls.size()));
      return false;
    }
    if (whole.chances.empty()) return true;  // who could tell?
    const Parting parting = PartByText(whole, streamed.thinking, streamed.text, limits_.near_tie);
    if (parting.near || parting.at < 0) return true;
    Find(FindingKind::kStream,
         fmt::format("{}: the streamed answer is another than the whole one from token {} on: "
                     "\"{}\" where that has \"{}\"",
                     name, parting.at, ForTerminal(parting.theirs), ForTerminal(parting.ours)));
    return false;
  }

  void Answers(const ModelReply& ours, const ModelReply& theirs) {
    const std::vector<std::string> parts = Parts(ours, theirs);
    const bool both = !ours.chances.empty() && !theirs.chances.empty();
    std::optional<Parting> parting;
    if (both) parting = PartByTokens(ours, theirs, limits_.near_tie);
    if (both) OwnTokens(ours, theirs, parting);
    out_.equal = parts.empty();
    if (out_.equal) {
      if (ours.finish_reason == theirs.finish_reason) return;
      return Find(FindingKind::kFinish,
                  fmt::format("the same answer ends with \"{}\" on ours and "
                              "\"{}\" on theirs",
                              ForTerminal(ours.finish_reason), ForTerminal(theirs.finish_reason)));
    }
    if (both && !parting) {
      out_.parting = Parting{};
      return Find(FindingKind::kReading,
                  fmt::format("the same tokens are another message: {}", fmt::join(parts, ", ")));
    }
    if (!both) parting = OneSided(ours, theirs);
    out_.parting = parting;
    if (!parting->near) Find(FindingKind::kAnswer, Told(*parting, parts));
  }

  void Given(const GivenText& given, const Heard& ours, const Heard& theirs) {
    if (ours.given.size() != given.ids.size() || theirs.given.size() != given.ids.size() ||
        given.ids.empty()) {
      out_.given_why =
          !ours.given_error.empty() ? "ours: " + ours.given_error : "theirs: " + theirs.given_error;
      return;
    }
    for (size_t i = 1; i < given.ids.size(); ++i) {
      (i < given.prompt_count ? out_.given_prompt : out_.given_answer)
          .Add(ours.given[i], theirs.given[i]);
    }
  }

  PromptComparison Take() { return std::move(out_); }

 private:
  void OwnTokens(const ModelReply& ours,
                 const ModelReply& theirs,
                 const std::optional<Parting>& parting) {
    const size_t same = parting ? static_cast<size_t>(parting->at) : ours.chances.size();
    for (size_t i = 0; i < same; ++i) {
      out_.own.Add(ours.chances[i].logprob, theirs.chances[i].logprob);
    }
  }

  // With the log-probabilities of one server at most.
  Parting OneSided(const ModelReply& ours, const ModelReply& theirs) const {
    if (!ours.chances.empty()) {
      return PartByText(ours, theirs.thinking, theirs.content, limits_.near_tie);
    }
    if (theirs.chances.empty()) return {};
    Parting out = PartByText(theirs, ours.thinking, ours.content, limits_.near_tie);
    std::swap(out.ours, out.theirs);
    std::swap(out.gap_ours, out.gap_theirs);
    return out;
  }

  static std::string Told(const Parting& parting, const std::vector<std::string>& parts) {
    const std::string what = fmt::format("{}", fmt::join(parts, ", "));
    if (parting.at < 0) {
      return fmt::format("the answers differ ({}); how near a tie it is, no server tells", what);
    }
    const auto gap = [](const std::optional<double>& nats) {
      return nats ? fmt::format("{:.2f} nats apart", *nats) : std::string("not told how far apart");
    };
    return fmt::format(
        "the answers differ from token {} on ({}): ours \"{}\", theirs \"{}\", "
        "which are {} on ours and {} on theirs",
        parting.at, what, ForTerminal(parting.ours), ForTerminal(parting.theirs),
        gap(parting.gap_ours), gap(parting.gap_theirs));
  }

  const VerifyPrompt& prompt_;
  const CompareLimits& limits_;
  PromptComparison out_;
};

}  // namespace

const char* NameOf(FindingKind kind) {
  switch (kind) {
    case FindingKind::kNoAnswer:
      return "no answer";
    case FindingKind::kPromptTokens:
      return "prompt tokens";
    case FindingKind::kWrongCall:
      return "tool call";
    case FindingKind::kWrongForm:
      return "structured output";
    case FindingKind::kStream:
      return "stream";
    case FindingKind::kReading:
      return "reading";
    case FindingKind::kAnswer:
      return "answer";
    case FindingKind::kFinish:
      return "finish reason";
    case FindingKind::kLogprobs:
      return "log-probabilities";
  }
  return "";
}

void LogprobDifference::Add(double ours, double theirs) {
  constexpr double kImpossible = -9000;  // how servers write a logarithm of nothing
  if (ours < kImpossible && theirs < kImpossible) return;
  const double apart = std::abs(ours - theirs);
  ++tokens;
  sum += apart;
  largest = std::max(largest, apart);
}

void LogprobDifference::Add(const LogprobDifference& other) {
  tokens += other.tokens;
  sum += other.sum;
  largest = std::max(largest, other.largest);
}

Result<GivenText> ChooseGiven(const Heard& ours, const Heard& theirs) {
  const Heard& from = theirs.prompt_ids.empty() ? ours : theirs;
  GivenText out{.ids = from.prompt_ids, .prompt_count = from.prompt_ids.size()};
  if (out.ids.empty()) return Status(Code::kNotFound, "no server tells the prompt's tokens");
  const std::vector<int64_t>& answer = theirs.whole.ids.empty() ? ours.whole.ids : theirs.whole.ids;
  out.ids.insert(out.ids.end(), answer.begin(), answer.end());
  if (out.ids.size() > kGivenTokensMax) {
    return Status(Code::kNotFound,
                  fmt::format("prompt and answer have more than {} tokens", kGivenTokensMax));
  }
  return out;
}

PromptComparison Compare(const VerifyPrompt& prompt,
                         const Heard& ours,
                         const Heard& theirs,
                         const GivenText& given,
                         const CompareLimits& limits) {
  Comparer comparer(prompt, limits);
  comparer.Answered(ours, theirs);
  comparer.PromptTokens(ours, theirs);
  comparer.Valid("ours", ours);
  comparer.Valid("theirs", theirs);
  const bool ours_varies = comparer.Varies("ours", ours);
  const bool theirs_varies = comparer.Varies("theirs", theirs);
  if (ours.whole_error.empty() && theirs.whole_error.empty()) {
    comparer.Answers(ours.whole, theirs.whole);
  }
  comparer.Given(given, ours, theirs);
  PromptComparison out = comparer.Take();
  out.ours_varies = ours_varies;
  out.theirs_varies = theirs_varies;
  return out;
}

}  // namespace baltoro
