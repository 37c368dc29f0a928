#include <fmt/format.h>

#include <algorithm>

#include "doctor/judge.h"

namespace baltoro {
namespace {

constexpr size_t kProblemsShown = 8;
constexpr double kLoadSecondsMax = 600;

double Gb(int64_t bytes) {
  return static_cast<double>(bytes) / 1e9;
}

DoctorLine JudgeFiles(const ModelFacts& facts) {
  DoctorLine line{.name = "weights",
                  .text = fmt::format("{} files, {:.2f} GB, as index and headers say", facts.files,
                                      Gb(facts.bytes))};
  if (facts.elsewhere > 0) {
    line.text += fmt::format("; of {} of them the header alone, for other nodes", facts.elsewhere);
  }
  if (facts.problems.empty()) return line;
  line.verdict = DoctorVerdict::kBroken;
  line.text.clear();
  for (size_t i = 0; i < std::min(facts.problems.size(), kProblemsShown); ++i) {
    line.text += (i > 0 ? "; " : "") + facts.problems[i];
  }
  if (facts.problems.size() > kProblemsShown) {
    line.text += fmt::format("; and {} more", facts.problems.size() - kProblemsShown);
  }
  line.remedy = "`baltoro pull` fetches what is missing or cut short; `baltoro inspect` says more";
  return line;
}

DoctorLine JudgeSums(const ModelFacts& facts) {
  DoctorLine line{.name = "sums",
                  .text = fmt::format("{} files are as they were downloaded", facts.sums_right)};
  if (facts.sums_unknown > 0) {
    line.verdict = DoctorVerdict::kWarning;
    line.text += fmt::format("; of {} no download left a sum", facts.sums_unknown);
    line.remedy = "`baltoro pull REPO --local-dir` of this folder compares them with the hub's";
  }
  if (facts.sums_wrong.empty()) return line;
  line.verdict = DoctorVerdict::kBroken;
  const SumReport& first = facts.sums_wrong.front();
  line.text = fmt::format("{} of {} files differ: {} has the sum {}, {} was downloaded",
                          facts.sums_wrong.size(),
                          facts.sums_right + static_cast<int64_t>(facts.sums_wrong.size()),
                          first.file, first.found, first.wanted);
  line.remedy = "remove them and run `baltoro pull` again; look at the disk's health";
  return line;
}

DoctorLine JudgeDisk(const ModelFacts& facts) {
  DoctorLine line{.name = "disk"};
  if (facts.disk_gb_per_s < 0) {
    line.text = facts.disk_problem.empty() ? "not measured: there is no large file here"
                                           : "not measured: " + facts.disk_problem;
    return line;
  }
  const double seconds = Gb(facts.bytes) / std::max(1e-3, facts.disk_gb_per_s);
  line.text =
      fmt::format("{:.2f} GB/s read (of {:.2f} GB, past the page cache): all weights in {:.0f} s",
                  facts.disk_gb_per_s, Gb(facts.disk_bytes), seconds);
  if (seconds > kLoadSecondsMax) {
    line.verdict = DoctorVerdict::kWarning;
    line.remedy = "each start takes as long: a local NVMe disk, or a faster mount";
  }
  return line;
}

}  // namespace

std::vector<DoctorLine> JudgeModel(const ModelFacts& facts) {
  if (facts.asked.empty()) return {};
  if (!facts.missing.empty()) {
    return {{.name = "model",
             .verdict = DoctorVerdict::kBroken,
             .text = facts.missing,
             .remedy = "`baltoro pull ORG/NAME` downloads one"}};
  }
  std::vector<DoctorLine> lines = {{.name = "model", .text = facts.dir}};
  for (const std::string* problem : {&facts.config_problem, &facts.vocabulary_problem}) {
    if (problem->empty()) continue;
    lines.push_back({.name = problem == &facts.config_problem ? "config.json" : "vocabulary",
                     .verdict = DoctorVerdict::kBroken,
                     .text = *problem,
                     .remedy = "`baltoro pull` fetches what is missing"});
  }
  lines.push_back(JudgeFiles(facts));
  if (facts.sums_asked) lines.push_back(JudgeSums(facts));
  lines.push_back(JudgeDisk(facts));
  return lines;
}

std::vector<DoctorLine> Judge(const NodeFacts& facts) {
  std::vector<DoctorLine> lines = JudgeCards(facts.card);
  for (const auto& part : {JudgeHost(facts.host, facts.card.cards.size()), JudgeNet(facts.net),
                           JudgeModel(facts.model)}) {
    lines.insert(lines.end(), part.begin(), part.end());
  }
  return lines;
}

DoctorVerdict WorstOf(const std::vector<DoctorLine>& lines) {
  DoctorVerdict worst = DoctorVerdict::kOk;
  for (const DoctorLine& line : lines) worst = std::max(worst, line.verdict);
  return worst;
}

const char* NameOf(DoctorVerdict verdict) {
  switch (verdict) {
    case DoctorVerdict::kOk:
      return "ok";
    case DoctorVerdict::kWarning:
      return "warning";
    case DoctorVerdict::kBroken:
      return "broken";
  }
  return "";
}

std::string DoctorText(const std::vector<DoctorLine>& lines) {
  std::string text;
  int64_t warnings = 0, broken = 0;
  for (const DoctorLine& line : lines) {
    warnings += line.verdict == DoctorVerdict::kWarning ? 1 : 0;
    broken += line.verdict == DoctorVerdict::kBroken ? 1 : 0;
    text += fmt::format("{:<8} {:<15} {}\n", NameOf(line.verdict), line.name, line.text);
    if (!line.remedy.empty()) text += fmt::format("{:<24} -> {}\n", "", line.remedy);
  }
  if (warnings + broken == 0) return text + "Nothing is wrong.\n";
  return text +
         fmt::format("{} broken, {} warning{}.\n", broken, warnings, warnings == 1 ? "" : "s");
}

Json DoctorJson(const std::vector<DoctorLine>& lines) {
  Json checks = Json::array();
  for (const DoctorLine& line : lines) {
    Json check = {{"name", line.name}, {"verdict", NameOf(line.verdict)}, {"text", line.text}};
    if (!line.remedy.empty()) check["remedy"] = line.remedy;
    checks.push_back(std::move(check));
  }
  return {{"verdict", NameOf(WorstOf(lines))}, {"checks", std::move(checks)}};
}

}  // namespace baltoro
