#include "eval.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/gzip.h"
#include "client/api_client.h"
#include "client/eval_case.h"
#include "model_location.h"
#include "terminal/progress_line.h"

namespace baltoro {
namespace {

constexpr int kAttempts = 30;

struct Tally {
  int64_t cases = 0, right = 0, failed = 0;
  int64_t free_cases = 0, free_right = 0;  // of those asked without the constraint as well
};

struct Interval {
  double low = 0, high = 0;
};

// Wilson's 95 % interval of a share.
Interval Wilson(int64_t right, int64_t cases) {
  if (cases == 0) return {};
  constexpr double kZ = 1.959964;
  const double n = static_cast<double>(cases);
  const double p = static_cast<double>(right) / n;
  const double centre = (p + kZ * kZ / (2 * n)) / (1 + kZ * kZ / n);
  const double half = kZ * std::sqrt(p * (1 - p) / n + kZ * kZ / (4 * n * n)) / (1 + kZ * kZ / n);
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

// Mean over texts of the mean log-likelihood of a token, and its standard error.
struct Likelihood {
  int64_t texts = 0, tokens = 0;
  double mean = 0, standard_error = 0;
};

class Runner {
 public:
  Runner(const EvalOptions& options, std::string model)
      : options_(options), model_(std::move(model)) {}

  // Calls `work(client, i)` for each i, from `concurrency` threads with a connection each, and
  // shows how many of `what` are done.
  Status ForEach(const char* what,
                 size_t count,
                 const std::function<Status(ApiClient&, size_t)>& work) {
    std::atomic<size_t> next{0};
    std::mutex mutex;
    Status first;
    size_t done = 0;
    ProgressLine line;
    std::vector<std::jthread> threads;
    for (int t = 0; t < std::max(1, options_.concurrency); ++t) {
      threads.emplace_back([&] {
        Result<ApiClient> client = ApiClient::Connect(options_.url, options_.api_key);
        for (size_t i = next++; client.ok() && i < count; i = next++) {
          const Status status = work(client.value(), i);
          const std::lock_guard lock(mutex);
          if (!status.ok() && first.ok()) first = status;
          ++done;
          line.Show(fmt::format("{} of {} {} are done", done, count, what));
        }
      });
    }
    threads.clear();
    return first;
  }

  // With `constrained` false, only the cases with tools.
  Status RunCases(const std::vector<EvalCase>& cases,
                  bool constrained,
                  std::vector<EvalVerdict>& verdicts) {
    verdicts.assign(cases.size(), {});
    return ForEach("cases", cases.size(), [&](ApiClient& client, size_t i) -> Status {
      if (!constrained && !cases[i].has_tools()) return {};
      const Json body = cases[i].Request(model_, constrained);
      Result<Json> answer = Ask(client, "/v1/chat/completions", body);
      if (!answer.ok()) {
        verdicts[i].note = answer.status().message();
        verdicts[i].failed = true;
        return answer.status().code() == Code::kUnavailable ? answer.status() : Status();
      }
      verdicts[i] = cases[i].Judge(answer.value());
      return {};
    });
  }

  Status RunLikelihood(const std::vector<Json>& texts, Likelihood& out) {
    std::vector<double> means(texts.size());
    std::atomic<int64_t> tokens{0};
    BT_RETURN_IF_ERROR(ForEach("texts", texts.size(), [&](ApiClient& client, size_t i) -> Status {
      const Json body = {{"model", model_}, {"prompt", texts[i]["ids"]},
                         {"max_tokens", 1}, {"echo", true},
                         {"logprobs", 0},   {"temperature", 0}};
      BT_ASSIGN_OR_RETURN(const Json answer, Ask(client, "/v1/completions", body));
      const Json& values = answer["choices"][0]["logprobs"]["token_logprobs"];
      const size_t begin = std::max<size_t>(1, texts[i].value("score_from", size_t{1}));
      const size_t end = texts[i]["ids"].size();
      double sum = 0;
      for (size_t t = begin; t < end; ++t) sum += values[t].get<double>();
      tokens += static_cast<int64_t>(end - begin);
      means[i] = sum / static_cast<double>(end - begin);
      return {};
    }));
    out.texts = static_cast<int64_t>(texts.size());
    out.tokens = tokens;
    double square = 0;
    for (const double mean : means) out.mean += mean / static_cast<double>(means.size());
    for (const double mean : means) square += (mean - out.mean) * (mean - out.mean);
    if (means.size() > 1) {
      out.standard_error = std::sqrt(square / static_cast<double>(means.size() - 1) /
                                     static_cast<double>(means.size()));
    }
    return {};
  }

 private:
  // A busy or restarting server says 429 or 503; as any client would, this one waits and asks
  // again.
  static Result<Json> Ask(ApiClient& client, const std::string& path, const Json& body) {
    Result<Json> answer = client.Post(path, body);
    for (int attempt = 1;
         attempt < kAttempts && !answer.ok() && answer.status().code() == Code::kUnavailable;
         ++attempt) {
      std::this_thread::sleep_for(std::chrono::seconds(1));
      answer = client.Post(path, body);
    }
    return answer;
  }

  const EvalOptions& options_;
  std::string model_;
};

Result<std::vector<Json>> ReadLines(const std::string& path, std::string_view flag) {
  BT_ASSIGN_OR_RETURN(const std::string text, ReadPlainOrGzip(path, kTextBytesMax, flag));
  std::vector<Json> out;
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++number;
    if (end > begin) {
      Result<Json> line = ParseJson(std::string_view(text).substr(begin, end - begin));
      if (!line.ok())
        return InvalidArgument(fmt::format("{}:{}: {}", path, number, line.status().message()));
      out.push_back(std::move(line).value());
    }
    begin = end + 1;
  }
  return out;
}

// `free`: the verdicts without the constraint, or empty; it adds two columns.
Json PrintTable(const std::vector<EvalCase>& cases,
                const std::vector<EvalVerdict>& verdicts,
                const std::vector<EvalVerdict>& free) {
  std::map<std::pair<std::string, std::string>, Tally> tallies;
  for (size_t i = 0; i < cases.size(); ++i) {
    Tally& tally = tallies[{cases[i].tier, cases[i].task}];
    ++tally.cases;
    tally.right += verdicts[i].right ? 1 : 0;
    tally.failed += verdicts[i].failed ? 1 : 0;
    if (free.empty() || !cases[i].has_tools()) continue;
    ++tally.free_cases;
    tally.free_right += free[i].right ? 1 : 0;
  }
  fmt::print("{:<6} {:<28} {:>6} {:>8} {:>19} {:>7}{}\n", "tier", "task", "cases", "right",
             "95 % interval", "errors",
             free.empty() ? "" : fmt::format(" {:>13} {:>19}", "unconstrained", "95 % interval"));
  Json rows = Json::array();
  for (const auto& [key, tally] : tallies) {
    const Interval interval = Wilson(tally.right, tally.cases);
    const double share = static_cast<double>(tally.right) / static_cast<double>(tally.cases);
    fmt::print("{:<6} {:<28} {:>6} {:>7.1f}% {:>8.1f}% - {:>5.1f}% {:>8}", key.first, key.second,
               tally.cases, 100 * share, 100 * interval.low, 100 * interval.high, tally.failed);
    const double free_share = static_cast<double>(tally.free_right) /
                              static_cast<double>(std::max<int64_t>(1, tally.free_cases));
    const Interval free_interval = Wilson(tally.free_right, tally.free_cases);
    if (tally.free_cases > 0) {
      fmt::print(" {:>12.1f}% {:>9.1f}% - {:>5.1f}%", 100 * free_share, 100 * free_interval.low,
                 100 * free_interval.high);
    }
    fmt::print("\n");
    rows.push_back({{"tier", key.first},
                    {"task", key.second},
                    {"cases", tally.cases},
                    {"right", tally.right},
                    {"share", share},
                    {"low", interval.low},
                    {"high", interval.high},
                    {"errors", tally.failed}});
    if (tally.free_cases == 0) continue;
    rows.back()["unconstrained"] = {{"cases", tally.free_cases},
                                    {"right", tally.free_right},
                                    {"share", free_share},
                                    {"low", free_interval.low},
                                    {"high", free_interval.high}};
  }
  return rows;
}

Json WrongOnes(const std::vector<EvalCase>& cases, const std::vector<EvalVerdict>& verdicts) {
  Json wrong = Json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    if (verdicts[i].right) continue;
    wrong.push_back({{"id", cases[i].id},
                     {"task", cases[i].task},
                     {"expected", cases[i].expect},
                     {"got", verdicts[i].got},
                     {"note", verdicts[i].note}});
  }
  return wrong;
}

Status Run(const EvalOptions& options) {
  // The files before the server: it may have to be waited for.
  BT_ASSIGN_OR_RETURN(const std::vector<Json> lines, ReadLines(options.cases, "--cases"));
  std::vector<Json> texts;
  if (!options.loglik.empty()) {
    BT_ASSIGN_OR_RETURN(texts, ReadLines(options.loglik, "--loglik"));
  }
  BT_ASSIGN_OR_RETURN(ApiClient client, ApiClient::Connect(options.url, options.api_key));
  BT_ASSIGN_OR_RETURN(const std::string model, client.ModelName(options.model));
  std::vector<EvalCase> cases;
  std::map<std::string, int64_t> taken;
  for (const Json& line : lines) {
    BT_ASSIGN_OR_RETURN(EvalCase one, EvalCase::Parse(line));
    if (!options.task.empty() && one.task != options.task) continue;
    if (options.limit > 0 && ++taken[one.tier + one.task] > options.limit) continue;
    cases.push_back(std::move(one));
  }
  if (cases.empty())
    return InvalidArgument("no case of task \"" + options.task + "\" in " + options.cases);

  Runner runner(options, model);
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  std::vector<EvalVerdict> verdicts;
  BT_RETURN_IF_ERROR(runner.RunCases(cases, /*constrained=*/true, verdicts));
  std::vector<EvalVerdict> free;
  if (options.compare_constraint) {
    BT_RETURN_IF_ERROR(runner.RunCases(cases, /*constrained=*/false, free));
  }
  Json report = {{"model", model}, {"url", options.url}};
  report["tasks"] = PrintTable(cases, verdicts, free);
  const auto has_failed = [](const EvalVerdict& verdict) { return verdict.failed; };
  const auto first = std::ranges::find_if(verdicts, has_failed);
  if (first != verdicts.end()) {
    const auto failed = std::ranges::count_if(verdicts, has_failed);
    const std::string said = fmt::format("{} of {} cases have no answer, the first because of: {}",
                                         failed, cases.size(), first->note);
    if (failed == std::ssize(verdicts)) return Status(Code::kUnavailable, said);
    fmt::print("{}\n", said);
  }
  if (!options.loglik.empty()) {
    Likelihood likelihood;
    BT_RETURN_IF_ERROR(runner.RunLikelihood(texts, likelihood));
    fmt::print("mean log-likelihood a token: {:.5f} +- {:.5f} ({} texts, {} tokens)\n",
               likelihood.mean, likelihood.standard_error, likelihood.texts, likelihood.tokens);
    report["log_likelihood"] = {{"mean", likelihood.mean},
                                {"standard_error", likelihood.standard_error},
                                {"texts", likelihood.texts},
                                {"tokens", likelihood.tokens}};
  }
  report["seconds"] = clock.Now() - start;
  report["wrong"] = WrongOnes(cases, verdicts);
  fmt::print("{} cases in {:.1f} s\n", cases.size(), clock.Now() - start);
  if (!options.output.empty()) {
    std::ofstream file(options.output);
    file << report.dump(1) << "\n";
    if (!file.good()) return Status(Code::kUnavailable, options.output + ": cannot be written");
  }
  return {};
}

}  // namespace

int RunEval(const EvalOptions& given, const std::string& program) {
  EvalOptions options = given;
  if (options.cases.empty()) {
    const Result<std::string> pocket = PocketDir(program);
    if (!pocket.ok()) {
      std::fprintf(stderr, "baltoro eval: %s; or give --cases\n",
                   pocket.status().message().c_str());
      return 1;
    }
    options.cases = pocket.value() + "/eval/cases.jsonl.gz";
    if (options.loglik.empty() && options.task.empty())
      options.loglik = pocket.value() + "/eval/loglik.jsonl.gz";
  }
  const Status status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "baltoro eval: %s\n", status.message().c_str());
  return 1;
}

}  // namespace baltoro
