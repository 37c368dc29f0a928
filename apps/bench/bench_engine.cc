#include "bench/bench_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "bench/statistics.h"
#include "engine/engine.h"
#include "engine_settings.h"
#include "host_plan.h"
#include "model_location.h"
#include "terminal/progress_line.h"

namespace baltoro {
namespace {

// As in vLLM: ids below it are ordinary tokens of every vocabulary.
constexpr int32_t kPromptVocab = 10000;
constexpr std::chrono::milliseconds kBetweenLooks(100);  // at how far it is
constexpr int kPercentiles[] = {10, 25, 50, 75, 90, 99};

// An engine, and what comes out of it.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Start(const BenchEngineCommand& command,
                                              const std::string& program) {
    const ServeOptions& options = command.serve;
    BT_ASSIGN_OR_RETURN(const std::string dir, LocateModel(options.model, program));
    BT_ASSIGN_OR_RETURN(EngineConfig config, MakeEngineConfig(options, dir));
    BT_RETURN_IF_ERROR(PlaceDraft(dir, program, config.speculation));
    if (config.nodes > 1) {
      return InvalidArgument("--nnodes: a benchmark of an engine runs on one node");
    }
    BT_ASSIGN_OR_RETURN(const HostPlan plan, PlanRun(options, {.dir = dir}, std::nullopt, config));
    BT_RETURN_IF_ERROR(KeepTo(plan, config));
    config.max_queued_requests = std::max<int64_t>(config.max_queued_requests, command.prompts);
    for (const std::string& notice : options.notices) BT_LOG(Warning, "{}", notice);
    std::unique_ptr<Bench> bench(new Bench);
    BT_ASSIGN_OR_RETURN(
        bench->engine_,
        StartEngine(
            config, [&to = *bench](const auto& events) { to.Take(events); },
            [&to = *bench](int64_t done, int64_t all) { to.ShowLoading(done, all); }));
    bench->line_.End();
    return bench;
  }

  int32_t vocab() const {
    return std::min(kPromptVocab, static_cast<int32_t>(engine_->info().vocab_size));
  }

  Status Submit(std::vector<TokenId> prompt, int32_t output_len) {
    Request request;
    request.id = RequestId(++last_id_);
    request.sampling.seed = last_id_;
    request.prompt = std::move(prompt);
    request.stop.max_tokens = output_len;
    request.stop.ignore_eos = true;
    Status status;
    for (int tries_alone = 0; tries_alone < 2;) {
      std::unique_lock lock(mutex_);
      ++open_;
      lock.unlock();
      status = engine_->Submit(request);
      if (status.ok()) return status;
      lock.lock();
      const int64_t others = --open_;
      if (status.code() != Code::kResourceExhausted) return status;
      // A full queue has room again when one of the others has ended.
      if (others == 0) ++tries_alone;
      changed_.wait(lock, [&] { return open_ < others || others == 0; });
    }
    return status;
  }

  // Until all that was sent has its last token; the error is that of the first that failed. `what`
  // begins the line of progress.
  Status Finish(const std::string& what) {
    std::unique_lock lock(mutex_);
    while (!changed_.wait_for(lock, kBetweenLooks, [this] { return open_ == 0; })) {
      line_.Show(
          fmt::format("{}{} requests under way, {} tokens came", what, open_, output_tokens_));
    }
    line_.End();
    return failure_;
  }
  int64_t output_tokens() const { return output_tokens_; }

 private:
  Bench() = default;

  void Take(const std::vector<TokenEvent>& events) {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      output_tokens_ += std::ssize(event.tokens);
      if (event.finish == FinishReason::kNone) continue;
      --open_;
      changed_.notify_all();
      if (event.finish == FinishReason::kLength || !failure_.ok()) continue;
      failure_ = Status(Code::kInternal, "a request ended early: " + event.error);
    }
  }

  // By the thread that starts the engine.
  void ShowLoading(int64_t done, int64_t all) {
    if (line_.due()) line_.Show("weights: " + loaded_.Text(done, all, MonotonicClock().Now()));
  }

  ProgressLine line_;
  ByteProgress loaded_;
  uint64_t last_id_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t open_ = 0;
  int64_t output_tokens_ = 0;
  Status failure_;
  std::unique_ptr<Engine> engine_;  // last: its thread uses all of the above
};

std::vector<TokenId> RandomPrompt(std::mt19937_64& random, int32_t vocab, int64_t length) {
  std::uniform_int_distribution<TokenId> token(0, vocab - 1);
  std::vector<TokenId> prompt(static_cast<size_t>(length));
  for (TokenId& one : prompt) one = token(random);
  return prompt;
}

Status WriteJson(const std::string& path, const Json& json) {
  if (path.empty()) return {};
  std::ofstream file(path);
  file << json.dump(4) << "\n";
  file.close();
  if (!file) return InvalidArgument("cannot write " + path);
  return {};
}

Status RunLatency(const BenchEngineCommand& command, Bench& bench) {
  std::mt19937_64 random(static_cast<uint64_t>(command.serve.seed));
  std::vector<std::vector<TokenId>> prompts;
  prompts.reserve(static_cast<size_t>(command.batch));
  for (int32_t i = 0; i < command.batch; ++i) {
    prompts.push_back(RandomPrompt(random, bench.vocab(), command.input_len));
  }
  const MonotonicClock clock;
  std::vector<double> latencies;
  for (int32_t round = -command.warm_ups; round < command.repeats; ++round) {
    const Seconds start = clock.Now();
    for (const std::vector<TokenId>& prompt : prompts) {
      BT_RETURN_IF_ERROR(bench.Submit(prompt, command.output_len));
    }
    BT_RETURN_IF_ERROR(bench.Finish(fmt::format("round {} of {}: ", round + command.warm_ups + 1,
                                                command.warm_ups + command.repeats)));
    if (round >= 0) latencies.push_back(clock.Now() - start);
  }
  const double mean = Mean(latencies);
  std::vector<double> sorted = latencies;
  std::ranges::sort(sorted);
  Json percentiles = Json::object();
  fmt::print("Avg latency: {} seconds\n", mean);
  for (const int percent : kPercentiles) {
    const double value = PercentileOfSorted(sorted, percent);
    percentiles[std::to_string(percent)] = value;
    fmt::print("{}% percentile latency: {} seconds\n", percent, value);
  }
  return WriteJson(command.output_json,
                   {{"avg_latency", mean}, {"latencies", latencies}, {"percentiles", percentiles}});
}

Status RunThroughput(const BenchEngineCommand& command, Bench& bench) {
  std::mt19937_64 random(static_cast<uint64_t>(command.serve.seed));
  const auto length = [&](int32_t wanted) {
    const auto least = static_cast<int64_t>((1 - command.range_ratio) * wanted);
    const auto most = static_cast<int64_t>((1 + command.range_ratio) * wanted);
    return std::max<int64_t>(1, std::uniform_int_distribution<int64_t>(least, most)(random));
  };
  const std::vector<TokenId> prefix = RandomPrompt(random, bench.vocab(), command.prefix_len);
  std::vector<std::pair<std::vector<TokenId>, int32_t>> requests;
  int64_t prompt_tokens = 0;
  for (int32_t i = 0; i < command.prompts; ++i) {
    std::vector<TokenId> prompt = prefix;
    const std::vector<TokenId> own = RandomPrompt(random, bench.vocab(), length(command.input_len));
    prompt.insert(prompt.end(), own.begin(), own.end());
    prompt_tokens += std::ssize(prompt);
    requests.emplace_back(std::move(prompt), static_cast<int32_t>(length(command.output_len)));
  }
  const MonotonicClock clock;
  const Seconds start = clock.Now();
  for (auto& [prompt, output_len] : requests) {
    BT_RETURN_IF_ERROR(bench.Submit(std::move(prompt), output_len));
  }
  BT_RETURN_IF_ERROR(bench.Finish(""));
  const double elapsed = clock.Now() - start;
  const int64_t tokens = prompt_tokens + bench.output_tokens();
  const auto rate = [elapsed](int64_t count) { return static_cast<double>(count) / elapsed; };
  fmt::print("Throughput: {:.2f} requests/s, {:.2f} total tokens/s, {:.2f} output tokens/s\n",
             rate(command.prompts), rate(tokens), rate(bench.output_tokens()));
  fmt::print("Total num prompt tokens:  {}\nTotal num output tokens:  {}\n", prompt_tokens,
             bench.output_tokens());
  return WriteJson(command.output_json, {{"elapsed_time", elapsed},
                                         {"num_requests", command.prompts},
                                         {"total_num_tokens", tokens},
                                         {"requests_per_second", rate(command.prompts)},
                                         {"tokens_per_second", rate(tokens)}});
}

Status Run(const BenchEngineCommand& command, const std::string& program) {
  BT_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Start(command, program));
  return command.latency ? RunLatency(command, *bench) : RunThroughput(command, *bench);
}

}  // namespace

int RunBenchEngine(const BenchEngineCommand& command, const std::string& program) {
  const Status status = Run(command, program);
  if (status.ok()) return 0;
  fmt::print(stderr, "baltoro bench {}: error: {}\n", command.latency ? "latency" : "throughput",
             status.message());
  return 1;
}

}  // namespace baltoro
