#include "bench/serve/result.h"

#include <gtest/gtest.h>

#include "bench/plot.h"
#include "bench/serve/sweep.h"
#include "bench/statistics.h"

namespace baltoro {
namespace {

Spread Numbers(double mean, double median, double p99) {
  return {.mean = mean, .median = median, .deviation = 0, .percentiles = {p99}};
}

// The three tables that the FP8 guide prints, rebuilt from their numbers. They are of a release
// that wrote "Token" large in one label and had no line of failures.
TEST(ResultTest, TheGuidesTablesAreReproducedToTheCharacter) {
  struct Case {
    double rate, seconds;
    int64_t requests, input, output;
    Spread ttft, tpot, itl;
    std::vector<std::string> lines;
  };
  const std::vector<Case> cases = {
      {1,
       132.79,
       8,
       8000,
       4096,
       Numbers(58282.92, 57827.30, 110831.45),
       Numbers(30.78, 31.49, 33.76),
       Numbers(30.78, 22.37, 322.81),
       {"Request rate configured (RPS):           1.00      ",
        "Request throughput (req/s):              0.06      ",
        "P99 TTFT (ms):                           110831.45 ",
        "P99 ITL (ms):                            322.81    "}},
      {kAllAtOnce,
       62.75,
       16,
       128000,
       16000,
       Numbers(4278.46, 4285.54, 7685.31),
       Numbers(58.15, 58.16, 61.35),
       Numbers(58.15, 54.59, 91.18),
       {"Request throughput (req/s):              0.25      ",
        "Median TPOT (ms):                        58.16     "}},
      {10000,
       47.14,
       16,
       128000,
       16000,
       Numbers(2007.87, 1932.03, 4680.76),
       Numbers(45.01, 45.10, 46.51),
       Numbers(45.01, 42.01, 52.01),
       {"Successful requests:                     16        ",
        "Request rate configured (RPS):           10000.00  ",
        "Benchmark duration (s):                  47.14     ",
        "Total input tokens:                      128000    ",
        "Total generated tokens:                  16000     ",
        "Peak output token throughput (tok/s):    384.00    ",
        "Peak concurrent requests:                16.00     ",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          2007.87   ",
        "Median TTFT (ms):                        1932.03   ",
        "P99 TTFT (ms):                           4680.76   ",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          45.01     ",
        "---------------Inter-token Latency----------------",
        "Median ITL (ms):                         42.01     ",
        "=================================================="}},
  };
  for (const Case& one : cases) {
    BenchServeCommand command;
    command.load.rate = one.rate;
    BenchResult result{.seconds = one.seconds,
                       .completed = one.requests,
                       .input_tokens = one.input,
                       .output_tokens = one.output,
                       .peak_output = 384,
                       .peak_requests = 16,
                       .metrics = {{"ttft", one.ttft}, {"tpot", one.tpot}, {"itl", one.itl}}};
    const std::string table = ResultTable(result, command);
    EXPECT_TRUE(table.starts_with("============ Serving Benchmark Result ============\n"));
    for (const std::string& line : one.lines) {
      EXPECT_NE(table.find("\n" + line + "\n"), std::string::npos) << line << "\nin\n" << table;
    }
    EXPECT_EQ(table.find("Request rate configured") == table.npos, one.rate == kAllAtOnce);
    EXPECT_EQ(table.find("goodput"), table.npos);
  }
}

Answer Made(double start, double ttft, std::vector<double> itls, int64_t tokens) {
  Answer out{.start = start, .ttft = ttft, .latency = ttft, .itls = std::move(itls)};
  for (const double itl : out.itls) out.latency += itl;
  out.prompt_tokens = 10;
  out.output_tokens = tokens;
  out.success = true;
  return out;
}

TEST(ResultTest, NumbersFollowFromAnswers) {
  BenchServeCommand command;
  command.percentiles = {50, 99.9};
  command.metrics = {"ttft", "e2el"};
  command.goodput = {{"ttft", 250}, {"tpot", 300}};
  std::vector<Answer> answers = {Made(100, 0.1, {0.25, 0.25}, 3),
                                 Made(100.5, 0.3, {0.5, 1, 1}, 6),
                                 Made(100.9, 0.2, {}, 1),
                                 {}};
  answers.back().error = "refused";
  const BenchResult result = Summarise(answers, 4, command);
  EXPECT_EQ(result.completed, 3);
  EXPECT_EQ(result.failed, 1);
  EXPECT_EQ(result.input_tokens, 30);
  EXPECT_EQ(result.output_tokens, 10);
  EXPECT_EQ(result.good, 2);  // the second came too late
  EXPECT_NEAR(result.metrics.at("ttft").mean, 200, 1e-9);
  EXPECT_NEAR(result.metrics.at("ttft").deviation, 81.6496580927726, 1e-9);
  EXPECT_NEAR(result.metrics.at("ttft").percentiles[1], 299.8, 1e-9);
  EXPECT_NEAR(result.metrics.at("tpot").mean, (250 + 500) / 2.0, 1e-9);  // not of one token
  EXPECT_NEAR(result.metrics.at("itl").median, 500, 1e-9);
  // From 100 on: 100.1, .35, .6, .8 | 101.1, 101.3 | 102.3 | 103.3.
  EXPECT_EQ(result.peak_output, 4);
  EXPECT_EQ(result.peak_requests, 3);

  const std::string table = ResultTable(result, command);
  EXPECT_NE(table.find("Request goodput (req/s):                 0.50      \n"), table.npos);
  EXPECT_NE(table.find("P99.9 TTFT (ms):                         299.80    \n"), table.npos);
  EXPECT_NE(table.find("----------------End-to-end Latency----------------\n"), table.npos);
  EXPECT_EQ(table.find("TPOT"), table.npos);
}

TEST(ResultTest, TheFileHasUpstreamsNameAndKeys) {
  BenchServeCommand command;
  command.backend = "openai";
  command.model = "org/name";
  command.metadata = {{"tp", "8"}};
  const std::vector<Answer> answers = {Made(0, 1, {0.5}, 2)};
  const BenchResult result = Summarise(answers, 2, command);
  Json json = ResultJson(result, answers, command, "20260102-030405");
  for (const char* key : {"date",
                          "endpoint_type",
                          "backend",
                          "label",
                          "model_id",
                          "tokenizer_id",
                          "num_prompts",
                          "tp",
                          "request_rate",
                          "burstiness",
                          "max_concurrency",
                          "duration",
                          "completed",
                          "failed",
                          "total_input_tokens",
                          "total_output_tokens",
                          "request_throughput",
                          "request_goodput",
                          "output_throughput",
                          "total_token_throughput",
                          "max_output_tokens_per_s",
                          "max_concurrent_requests",
                          "rtfx",
                          "mean_ttft_ms",
                          "median_tpot_ms",
                          "std_itl_ms",
                          "p99_itl_ms"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  EXPECT_EQ(json["request_rate"], "inf");
  EXPECT_TRUE(json["request_goodput"].is_null());
  EXPECT_FALSE(json.contains("itls"));
  command.detailed = true;
  json = ResultJson(result, answers, command, "x");
  EXPECT_EQ(json["itls"], Json({{0.5}}));
  EXPECT_EQ(json["latencies"], Json(std::vector<double>{answers[0].latency}));
  EXPECT_EQ(json["output_lens"], Json(std::vector<int>{2}));
  EXPECT_EQ(ResultPath(command, "D"), "openai-infqps-name-D.json");
  command.load = {.rate = 2, .max_concurrency = 4, .ramp = {}};
  command.result_dir = "r";
  command.label = "l";
  EXPECT_EQ(ResultPath(command, "D"), "r/l-2.0qps-concurrency4-name-D.json");
  command.result_file = "f.json";
  EXPECT_EQ(ResultPath(command, "D"), "r/f.json");
}

TEST(ResultTest, SpeculationIsWhatCameBetween) {
  const auto page = [](int n) {
    const std::string count = std::to_string(n * 10), labels = "{engine=\"0\",position=\"";
    return "# HELP x\nvllm:spec_decode_num_drafts_total{engine=\"0\"} " + count +
           ".0\nvllm:spec_decode_num_draft_tokens_total{engine=\"0\"} " + std::to_string(n * 20) +
           "\nvllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} " + std::to_string(n * 15) +
           "\nvllm:spec_decode_num_drafts_created{engine=\"0\"} 1.7e9" +
           "\nvllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + "0\"} " + count +
           "\nvllm:spec_decode_num_accepted_tokens_per_pos_total" + labels + "1\"} " +
           std::to_string(n * 5) + "\n";
  };
  EXPECT_FALSE(ReadSpeculation("vllm:num_requests_running 1\n"));
  EXPECT_FALSE(Between(*ReadSpeculation(page(2)), *ReadSpeculation(page(2))));
  BenchServeCommand command;
  BenchResult result = Summarise({}, 1, command);
  result.speculation = Between(*ReadSpeculation(page(1)), *ReadSpeculation(page(3)));
  const std::string table = ResultTable(result, command);
  for (const char* line :
       {"---------------Speculative Decoding---------------",
        "Acceptance rate (%):                     75.00     ",
        "Acceptance length:                       2.50      ",
        "Drafts:                                  20        ",
        "Per-position acceptance (%):", "  Position 1:                            50.00     "}) {
    EXPECT_NE(table.find(std::string("\n") + line + "\n"), table.npos) << line;
  }
}

TEST(SweepTest, HasARunAStepAndPlotsOfAll) {
  BenchServeCommand command;
  command.sweep_concurrency = {1, 4};
  command.sweep_prompts = 3;
  command.model = "a <model>";
  const std::vector<BenchServeCommand> runs = RunsOf(command);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[1].load.max_concurrency, 4);
  EXPECT_EQ(runs[1].data.prompts, 12);
  EXPECT_NE(runs[0].data.seed, runs[1].data.seed);
  std::vector<SweepPoint> points;
  for (const BenchServeCommand& run : runs) {
    points.push_back({run.load, Summarise({Made(0, 1, {0.5}, 2)}, 2, run)});
  }
  EXPECT_DOUBLE_EQ(points[0].per_user(), 2);
  EXPECT_NE(SweepTable(points, false).find("\n           4 "), std::string::npos);
  const std::string svg = SweepSvg(command, points);
  size_t lines = 0;
  for (size_t at = 0; (at = svg.find("<polyline", at)) != svg.npos; ++at) ++lines;
  EXPECT_EQ(lines, 7U);  // median and percentile of three metrics, and one of throughput
  EXPECT_NE(svg.find("a &lt;model>"), svg.npos);
  EXPECT_NE(svg.find("3 requests for each under way"), svg.npos);
}

}  // namespace
}  // namespace baltoro
