#include "verify/report.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "terminal/safe_text.h"

namespace baltoro {
namespace {

constexpr size_t kFindingsShown = 20;

using Rows = std::vector<std::pair<std::string, std::string>>;

std::string Told(const LogprobDifference& difference) {
  if (difference.tokens == 0) return "not compared";
  return fmt::format("mean {:.4f}, largest {:.3f} nats over {} tokens", difference.mean(),
                     difference.largest, difference.tokens);
}

std::string Told(const Times& times, double median, double p99) {
  return times.answers == 0 ? "none" : fmt::format("{:.1f} / {:.1f} ms", median, p99);
}

Rows RowsOf(const Verified& verified, const Conclusion& out) {
  const Times &ours = verified.ours_times, &theirs = verified.theirs_times;
  return {
      {"answered by both", fmt::format("{} of {} prompts", out.answered, out.asked)},
      {"tokens of prompts", fmt::format("{} the same; {} compared by ids, {} by their number alone",
                                        out.tokens_same, out.ids_compared, out.counts_compared)},
      {"greedy answers", fmt::format("{} equal, {} part at a near tie, {} differ", out.equal,
                                     out.near_ties, out.parted)},
      {"log-probabilities, given prompts", Told(out.given_prompt)},
      {"log-probabilities, given answers", Told(out.given_answer)},
      {"log-probabilities, own answers", Told(out.own)},
      {"streamed another answer than whole",
       fmt::format("ours {}, theirs {} (how much a server varies by itself)", out.ours_varies,
                   out.theirs_varies)},
      {"TTFT, median / p99",
       fmt::format("ours {}, theirs {}", Told(ours, ours.ttft_median, ours.ttft_p99),
                   Told(theirs, theirs.ttft_median, theirs.ttft_p99))},
      {"TPOT, median / p99",
       fmt::format("ours {}, theirs {}", Told(ours, ours.tpot_median, ours.tpot_p99),
                   Told(theirs, theirs.tpot_median, theirs.tpot_p99))},
  };
}

std::string Place(const Finding& finding) {
  return finding.prompt.empty() ? "all prompts" : finding.prompt;
}

// What others wrote stands in a report as text.
std::string Plain(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '`' || c == '*' || c == '_' || c == '[' || c == '\\') {
      out += '\\';
    }
    out += c == '\n' || c == '\r' ? ' ' : c;
  }
  return out;
}

Json AbilitiesJson(const Abilities& can) {
  return {{"logprobs", can.logprobs},
          {"token_ids", can.token_ids},
          {"tokenize", can.tokenize},
          {"echo", can.echo}};
}

Json DifferenceJson(const LogprobDifference& difference) {
  return {
      {"tokens", difference.tokens}, {"mean", difference.mean()}, {"largest", difference.largest}};
}

Json TimesJson(const Times& times) {
  return {{"answers", times.answers},
          {"ttft_ms", {{"median", times.ttft_median}, {"p99", times.ttft_p99}}},
          {"tpot_ms", {{"median", times.tpot_median}, {"p99", times.tpot_p99}}}};
}

Json GapJson(const std::optional<double>& gap) {
  return gap ? Json(*gap) : Json();
}

Json PromptJson(const PromptComparison& prompt) {
  constexpr const char* kTokens[] = {"not compared", "by number", "by id"};
  Json out = {{"id", prompt.id},
              {"answered", prompt.answered},
              {"prompt_tokens", kTokens[static_cast<int>(prompt.tokens)]},
              {"equal", prompt.equal}};
  if (prompt.parting) {
    const Parting& parting = *prompt.parting;
    out["parting"] = {{"token", parting.at < 0 ? Json() : Json(parting.at)},
                      {"ours", parting.ours},
                      {"theirs", parting.theirs},
                      {"gap_ours", GapJson(parting.gap_ours)},
                      {"gap_theirs", GapJson(parting.gap_theirs)},
                      {"near_tie", parting.near}};
  }
  out["given_prompt"] = DifferenceJson(prompt.given_prompt);
  out["given_answer"] = DifferenceJson(prompt.given_answer);
  out["own_answer"] = DifferenceJson(prompt.own);
  out["findings"] = Json::array();
  for (const Finding& finding : prompt.findings) {
    out["findings"].push_back({{"kind", NameOf(finding.kind)}, {"said", finding.said}});
  }
  return out;
}

}  // namespace

std::string ReportLines(const Verified& verified, const Conclusion& out) {
  std::string text = fmt::format("ours:   {} ({})\ntheirs: {} ({})\n\n", verified.ours_url,
                                 ForTerminal(verified.ours_model), verified.theirs_url,
                                 ForTerminal(verified.theirs_model));
  for (const auto& [name, value] : RowsOf(verified, out)) {
    text += fmt::format("{:<36} {}\n", name, value);
  }
  text += "\n";
  for (const std::string& line : out.not_compared) text += ForTerminal(line) + "\n";
  for (size_t i = 0; i < std::min(out.findings.size(), kFindingsShown); ++i) {
    const Finding& finding = out.findings[i];
    text +=
        ForTerminal(fmt::format("{}: {}: {}", NameOf(finding.kind), Place(finding), finding.said)) +
        "\n";
  }
  if (out.findings.size() > kFindingsShown) {
    text += fmt::format("and {} more, which --report has\n", out.findings.size() - kFindingsShown);
  }
  return text + out.sentence + "\n";
}

std::string ReportMarkdown(const Verified& verified, const Conclusion& out) {
  std::string text = fmt::format(
      "# Verification\n\n**{}**\n\n| | server | model |\n|---|---|---|\n| ours | {} | {} |\n"
      "| theirs | {} | {} |\n\n| compared | result |\n|---|---|\n",
      out.sentence, Plain(verified.ours_url), Plain(verified.ours_model),
      Plain(verified.theirs_url), Plain(verified.theirs_model));
  for (const auto& [name, value] : RowsOf(verified, out)) {
    text += fmt::format("| {} | {} |\n", name, value);
  }
  text += fmt::format(
      "\nA near tie: two tokens at most {:g} nats apart. Tolerance of the mean difference of "
      "log-probabilities: {:g} nats. The run took {:.0f} s.\n",
      verified.near_tie, verified.tolerance, verified.seconds);
  if (!out.findings.empty()) text += "\n## Differences, worst first\n\n";
  for (const Finding& finding : out.findings) {
    text += fmt::format("- {}, {}: {}\n", NameOf(finding.kind), Plain(Place(finding)),
                        Plain(finding.said));
  }
  if (!out.not_compared.empty()) text += "\n## Not compared\n\n";
  for (const std::string& line : out.not_compared) text += fmt::format("- {}\n", Plain(line));
  text += "\n## Near ties\n\n";
  for (const PromptComparison& prompt : verified.prompts) {
    if (!prompt.parting || !prompt.parting->near) continue;
    const Parting& parting = *prompt.parting;
    text += fmt::format(
        "- {}, token {}: ours \"{}\", theirs \"{}\"; apart on ours {}, on theirs "
        "{} nats\n",
        Plain(prompt.id), parting.at, Plain(parting.ours), Plain(parting.theirs),
        parting.gap_ours ? fmt::format("{:.3f}", *parting.gap_ours) : "unknown",
        parting.gap_theirs ? fmt::format("{:.3f}", *parting.gap_theirs) : "unknown");
  }
  if (out.near_ties == 0) text += "None.\n";
  return text;
}

Json ReportJson(const Verified& verified, const Conclusion& out) {
  Json json = {{"verdict", NameOf(out.sameness)},
               {"sentence", out.sentence},
               {"ours",
                {{"url", verified.ours_url},
                 {"model", verified.ours_model},
                 {"offers", AbilitiesJson(verified.ours_can)},
                 {"times", TimesJson(verified.ours_times)}}},
               {"theirs",
                {{"url", verified.theirs_url},
                 {"model", verified.theirs_model},
                 {"offers", AbilitiesJson(verified.theirs_can)},
                 {"times", TimesJson(verified.theirs_times)}}},
               {"near_tie", verified.near_tie},
               {"tolerance", verified.tolerance},
               {"seconds", verified.seconds},
               {"prompts",
                {{"asked", out.asked},
                 {"answered", out.answered},
                 {"refused", out.refused},
                 {"tokens_same", out.tokens_same},
                 {"equal", out.equal},
                 {"near_ties", out.near_ties},
                 {"parted", out.parted},
                 {"ours_varies", out.ours_varies},
                 {"theirs_varies", out.theirs_varies}}},
               {"given_prompts", DifferenceJson(out.given_prompt)},
               {"given_answers", DifferenceJson(out.given_answer)},
               {"own_answers", DifferenceJson(out.own)},
               {"too_little", out.too_little},
               {"not_compared", out.not_compared}};
  json["findings"] = Json::array();
  for (const Finding& finding : out.findings) {
    json["findings"].push_back(
        {{"kind", NameOf(finding.kind)}, {"prompt", finding.prompt}, {"said", finding.said}});
  }
  json["each"] = Json::array();
  for (const PromptComparison& prompt : verified.prompts) {
    json["each"].push_back(PromptJson(prompt));
  }
  return json;
}

}  // namespace baltoro
