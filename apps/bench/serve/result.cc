#include "bench/serve/result.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "bench/statistics.h"
#include "text/python_text.h"

namespace baltoro {
namespace {

struct Metric {
  const char *name, *shown, *title;
};
constexpr Metric kMetrics[] = {{"ttft", "TTFT", "Time to First Token"},
                               {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
                               {"itl", "ITL", "Inter-token Latency"},
                               {"e2el", "E2EL", "End-to-end Latency"}};

Spread SpreadOf(std::vector<double> seconds, const std::vector<double>& percents) {
  std::ranges::sort(seconds);
  Spread out{.mean = Mean(seconds) * 1e3,
             .median = PercentileOfSorted(seconds, 50) * 1e3,
             .deviation = StandardDeviation(seconds) * 1e3,
             .percentiles = {}};
  for (const double percent : percents) {
    out.percentiles.push_back(PercentileOfSorted(seconds, percent) * 1e3);
  }
  return out;
}

bool WithinGoals(const std::map<std::string, double>& goals,
                 double ttft,
                 double tpot,
                 double e2el) {
  return std::ranges::all_of(goals, [&](const auto& goal) {
    const double got = goal.first == "ttft" ? ttft : goal.first == "tpot" ? tpot : e2el;
    return got * 1e3 <= goal.second;
  });
}

// The fullest of the seconds from the first start on.
void FindPeaks(const std::vector<Answer>& answers, BenchResult& out) {
  double first = INFINITY, last = 0;
  for (const Answer& answer : answers) {
    if (!answer.success) continue;
    first = std::min(first, answer.start);
    last = std::max(last, answer.start + answer.latency);
  }
  if (out.completed == 0) return;
  std::vector<int64_t> chunks(static_cast<size_t>(last - first) + 2);
  std::vector<int64_t> change(chunks.size() + 1);
  for (const Answer& answer : answers) {
    if (!answer.success) continue;
    const double start = answer.start - first;
    double at = start + answer.ttft;
    chunks[static_cast<size_t>(at)] += 1;
    for (const double itl : answer.itls) chunks[static_cast<size_t>(at += itl)] += 1;
    change[static_cast<size_t>(start)] += 1;
    change[static_cast<size_t>(start + answer.latency) + 1] -= 1;
  }
  out.peak_output = static_cast<double>(*std::ranges::max_element(chunks));
  int64_t under_way = 0;
  for (const int64_t by : change) out.peak_requests = std::max(out.peak_requests, under_way += by);
}

std::string PercentWord(double percent) {
  return percent == std::floor(percent) ? fmt::format("{:.0f}", percent)
                                        : fmt::format("{}", percent);
}

// Integers as they are, others with two decimals.
std::string Row(std::string_view label, int64_t value) {
  return fmt::format("{:<40} {:<10}\n", label, value);
}
std::string Row(std::string_view label, double value) {
  return fmt::format("{:<40} {:<10.2f}\n", label, value);
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

std::vector<double> AcceptedAt(const Speculation& all) {
  std::vector<double> rates;
  for (const auto& [position, count] : all.accepted_at) rates.push_back(Share(count, all.drafts));
  return rates;
}

}  // namespace

BenchResult Summarise(const std::vector<Answer>& answers,
                      double seconds,
                      const BenchServeCommand& command) {
  BenchResult out{.seconds = seconds};
  std::vector<double> ttfts, tpots, itls, e2els;
  for (const Answer& answer : answers) {
    if (!answer.success) {
      ++out.failed;
      continue;
    }
    ++out.completed;
    const int64_t tokens = std::max<int64_t>(answer.output_tokens, 1);
    out.input_tokens += answer.prompt_tokens;
    out.output_tokens += tokens;
    ttfts.push_back(answer.ttft);
    e2els.push_back(answer.latency);
    itls.insert(itls.end(), answer.itls.begin(), answer.itls.end());
    double tpot = 0;
    if (tokens > 1) {
      tpot = (answer.latency - answer.ttft) / static_cast<double>(tokens - 1);
      tpots.push_back(tpot);
    }
    if (WithinGoals(command.goodput, answer.ttft, tpot, answer.latency)) ++out.good;
  }
  FindPeaks(answers, out);
  for (auto& [name, values] :
       {std::pair{"ttft", &ttfts}, {"tpot", &tpots}, {"itl", &itls}, {"e2el", &e2els}}) {
    out.metrics[name] = SpreadOf(std::move(*values), command.percentiles);
  }
  return out;
}

std::optional<Speculation> ReadSpeculation(std::string_view metrics) {
  Speculation out;
  bool any = false;
  for (const std::string_view line : SplitText(metrics, '\n')) {
    constexpr std::string_view kPrefix = "vllm:spec_decode_num_";
    if (!line.starts_with(kPrefix)) continue;
    const std::string_view name =
        line.substr(kPrefix.size(), line.find_first_of("{ ") - kPrefix.size());
    const std::string_view number = line.substr(line.rfind(' ') + 1);
    double value = 0;
    if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc())
      continue;
    if (!(value >= 0 && value < 0x1p62)) continue;  // no count: NaN, or below zero
    const auto count = static_cast<int64_t>(value);
    any = true;
    if (name == "drafts_total") out.drafts += count;
    if (name == "draft_tokens_total") out.draft_tokens += count;
    if (name == "accepted_tokens_total") out.accepted += count;
    const size_t at = line.find("position=\"");
    if (name == "accepted_tokens_per_pos_total" && at != line.npos) {
      int64_t position = 0;
      const char* digits = line.data() + at + 10;
      std::from_chars(digits, line.data() + line.size(), position);
      out.accepted_at[position] += count;
    }
  }
  if (!any) return std::nullopt;
  return out;
}

std::optional<Speculation> Between(const Speculation& before, const Speculation& after) {
  Speculation out = after;
  out.drafts -= before.drafts;
  out.draft_tokens -= before.draft_tokens;
  out.accepted -= before.accepted;
  for (const auto& [position, count] : before.accepted_at) out.accepted_at[position] -= count;
  if (out.drafts <= 0 || out.draft_tokens <= 0) return std::nullopt;
  return out;
}

std::string ResultTable(const BenchResult& result, const BenchServeCommand& command) {
  std::string out = fmt::format("{:=^50}\n", " Serving Benchmark Result ");
  out += Row("Successful requests:", result.completed) + Row("Failed requests:", result.failed);
  const LoadOptions& load = command.load;
  if (load.max_concurrency > 0) out += Row("Maximum request concurrency:", load.max_concurrency);
  if (load.rate != kAllAtOnce) out += Row("Request rate configured (RPS):", load.rate);
  out += Row("Benchmark duration (s):", result.seconds);
  out += Row("Total input tokens:", result.input_tokens);
  out += Row("Total generated tokens:", result.output_tokens);
  out += Row("Request throughput (req/s):", result.Rate(result.completed));
  if (!command.goodput.empty()) out += Row("Request goodput (req/s):", result.Rate(result.good));
  out += Row("Output token throughput (tok/s):", result.Rate(result.output_tokens));
  out += Row("Peak output token throughput (tok/s):", result.peak_output);
  out += Row("Peak concurrent requests:", static_cast<double>(result.peak_requests));
  out += Row("Total token throughput (tok/s):",
             result.Rate(result.input_tokens + result.output_tokens));
  for (const Metric& metric : kMetrics) {
    if (std::ranges::find(command.metrics, metric.name) == command.metrics.end()) continue;
    const Spread& spread = result.metrics.at(metric.name);
    const auto row = [&](std::string_view what, double value) {
      out += Row(fmt::format("{} {} (ms):", what, metric.shown), value);
    };
    out += fmt::format("{:-^50}\n", metric.title);
    row("Mean", spread.mean);
    row("Median", spread.median);
    for (size_t i = 0; i < command.percentiles.size(); ++i) {
      row("P" + PercentWord(command.percentiles[i]), spread.percentiles[i]);
    }
  }
  if (const auto& all = result.speculation) {
    out += fmt::format("{:-^50}\n", "Speculative Decoding");
    out += Row("Acceptance rate (%):", 100 * Share(all->accepted, all->draft_tokens));
    out += Row("Acceptance length:", 1 + Share(all->accepted, all->drafts));
    out += Row("Drafts:", all->drafts) + Row("Draft tokens:", all->draft_tokens);
    out += Row("Accepted tokens:", all->accepted);
    const std::vector<double> rates = AcceptedAt(*all);
    if (!rates.empty()) out += "Per-position acceptance (%):\n";
    for (size_t i = 0; i < rates.size(); ++i) {
      out += Row(fmt::format("  Position {}:", i), 100 * rates[i]);
    }
  }
  return out + std::string(50, '=') + "\n";
}

Json ResultJson(const BenchResult& result,
                const std::vector<Answer>& answers,
                const BenchServeCommand& command,
                const std::string& date) {
  const LoadOptions& load = command.load;
  const auto text = [](const std::string& value) { return value.empty() ? Json() : Json(value); };
  Json out = {{"date", date},
              {"endpoint_type", command.backend},
              {"backend", command.backend},
              {"label", text(command.label)},
              {"model_id", command.model},
              {"tokenizer_id", text(command.tokenizer)},
              {"num_prompts", command.data.prompts}};
  for (const auto& [key, value] : command.metadata) out[key] = value;
  out["request_rate"] = load.rate == kAllAtOnce ? Json("inf") : Json(load.rate);
  out["burstiness"] = load.burstiness;
  out["max_concurrency"] = load.max_concurrency > 0 ? Json(load.max_concurrency) : Json();
  if (!load.ramp.empty()) {
    out["ramp_up_strategy"] = load.ramp;
    out["ramp_up_start_rps"] = load.ramp_start;
    out["ramp_up_end_rps"] = load.ramp_end;
  }
  out["duration"] = result.seconds;
  out["completed"] = result.completed;
  out["failed"] = result.failed;
  out["total_input_tokens"] = result.input_tokens;
  out["total_output_tokens"] = result.output_tokens;
  out["request_throughput"] = result.Rate(result.completed);
  out["request_goodput"] = command.goodput.empty() ? Json() : Json(result.Rate(result.good));
  out["output_throughput"] = result.Rate(result.output_tokens);
  out["total_token_throughput"] = result.Rate(result.input_tokens + result.output_tokens);
  if (command.detailed) {
    const auto list = [&](const char* key, const auto& of) {
      Json& values = out[key] = Json::array();
      for (const Answer& answer : answers) values.push_back(of(answer));
    };
    list("input_lens", [](const Answer& one) { return one.prompt_tokens; });
    list("output_lens", [](const Answer& one) {
      return one.success ? std::max<int64_t>(one.output_tokens, 1) : 0;
    });
    list("start_times", [](const Answer& one) { return one.start; });
    list("ttfts", [](const Answer& one) { return one.ttft; });
    list("itls", [](const Answer& one) { return one.itls; });
    list("latencies", [](const Answer& one) { return one.latency; });
    list("generated_texts", [](const Answer& one) { return one.text; });
    list("errors", [](const Answer& one) { return one.error; });
  }
  out["max_output_tokens_per_s"] = result.peak_output;
  out["max_concurrent_requests"] = result.peak_requests;
  out["rtfx"] = 0.0;
  if (const auto& all = result.speculation) {
    out["spec_decode_acceptance_rate"] = 100 * Share(all->accepted, all->draft_tokens);
    out["spec_decode_acceptance_length"] = 1 + Share(all->accepted, all->drafts);
    out["spec_decode_num_drafts"] = all->drafts;
    out["spec_decode_draft_tokens"] = all->draft_tokens;
    out["spec_decode_accepted_tokens"] = all->accepted;
    out["spec_decode_per_position_acceptance_rates"] = AcceptedAt(*all);
  }
  for (const Metric& metric : kMetrics) {
    if (std::ranges::find(command.metrics, metric.name) == command.metrics.end()) continue;
    const Spread& spread = result.metrics.at(metric.name);
    const auto key = [&](std::string_view what) {
      return fmt::format("{}_{}_ms", what, metric.name);
    };
    out[key("mean")] = spread.mean;
    out[key("median")] = spread.median;
    out[key("std")] = spread.deviation;
    for (size_t i = 0; i < command.percentiles.size(); ++i) {
      out[key("p" + PercentWord(command.percentiles[i]))] = spread.percentiles[i];
    }
  }
  return out;
}

std::string ResultPath(const BenchServeCommand& command, const std::string& date) {
  const LoadOptions& load = command.load;
  std::string name = command.result_file;
  if (name.empty()) {
    const std::string rate = load.ramp.empty() ? PythonFloat(load.rate) + "qps"
                                               : fmt::format("ramp-up-{}-{}qps-{}qps", load.ramp,
                                                             load.ramp_start, load.ramp_end);
    name = fmt::format(
        "{}-{}{}-{}-{}.json", command.label.empty() ? command.backend : command.label, rate,
        load.max_concurrency > 0 ? fmt::format("-concurrency{}", load.max_concurrency) : "",
        command.model.substr(command.model.rfind('/') + 1), date);
  }
  if (command.result_dir.empty()) return name;
  return command.result_dir + (command.result_dir.ends_with('/') ? "" : "/") + name;
}

}  // namespace baltoro
