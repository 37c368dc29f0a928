#include "server/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <mutex>
#include <vector>

namespace baltoro {
namespace {

using Labels = std::map<std::string, std::string>;
using Buckets = prometheus::Histogram::BucketBoundaries;

const Buckets& FirstTokenBuckets() {
  static const Buckets buckets = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                  1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
  return buckets;
}
const Buckets& TokenBuckets() {
  static const Buckets buckets = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
  return buckets;
}
const Buckets& RequestBuckets() {
  static const Buckets buckets = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
  return buckets;
}

// 1, 2, 5, 10, 20 ... up to `max`.
Buckets Decades(int64_t max) {
  Buckets buckets;
  for (int64_t decade = 1; decade <= max; decade *= 10) {
    for (const int64_t step : {1, 2, 5}) {
      if (decade * step <= max) buckets.push_back(static_cast<double>(decade * step));
    }
  }
  return buckets;
}

// A counter that follows an engine's own count, which starts again at zero when the engine does.
class Follower {
 public:
  explicit Follower(prometheus::Counter& counter) : counter_(&counter) {}
  void Follow(uint64_t value) {
    if (value < last_) last_ = 0;
    counter_->Increment(static_cast<double>(value - last_));
    last_ = value;
  }

 private:
  prometheus::Counter* counter_;
  uint64_t last_ = 0;
};

}  // namespace

struct Metrics::State {
  prometheus::Registry registry;
  Labels labels;
  std::string model_name;

  prometheus::Gauge& AddGauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Counter& AddCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Histogram& AddHistogram(const char* name, const char* help, const Buckets& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add(labels,
                                                                                     buckets);
  }

  State(const std::string& model, int64_t max_model_len)
      : labels{{"model_name", model}, {"engine", "0"}},
        model_name(model),
        token_counts(Decades(max_model_len)) {}

  Buckets token_counts;
  std::mutex update_mutex;  // scrapes may come from several I/O threads

  prometheus::Gauge& running =
      AddGauge("vllm:num_requests_running", "Requests in the current batch.");
  prometheus::Gauge& waiting =
      AddGauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.");
  prometheus::Gauge& kv_usage =
      AddGauge("vllm:kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1.");
  Follower preemptions{AddCounter("vllm:num_preemptions_total", "Preemptions by recomputation.")};
  Follower prefix_queries{AddCounter("vllm:prefix_cache_queries_total",
                                     "Prompt tokens looked up in the prefix cache.")};
  Follower prefix_hits{
      AddCounter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")};
  Follower generation_tokens{AddCounter("vllm:generation_tokens_total", "Tokens generated.")};
  Follower local_compute{
      prometheus::BuildCounter()
          .Name("vllm:prompt_tokens_by_source_total")
          .Help("Prompt tokens by where their KV came from.")
          .Register(registry)
          .Add({{"model_name", model_name}, {"engine", "0"}, {"source", "local_compute"}})};
  prometheus::Counter& prompt_tokens =
      AddCounter("vllm:prompt_tokens_total", "Prompt tokens of finished requests.");
  prometheus::Counter& cached_tokens =
      AddCounter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from the cache.");

  prometheus::Histogram& first_token = AddHistogram(
      "vllm:time_to_first_token_seconds", "Arrival to first token.", FirstTokenBuckets());
  prometheus::Histogram& inter_token = AddHistogram(
      "vllm:inter_token_latency_seconds", "Between successive tokens.", TokenBuckets());
  prometheus::Histogram& per_token = AddHistogram("vllm:request_time_per_output_token_seconds",
                                                  "Mean time per output token of a request.",
                                                  TokenBuckets());
  prometheus::Histogram& end_to_end =
      AddHistogram("vllm:e2e_request_latency_seconds", "Arrival to end.", RequestBuckets());
  prometheus::Histogram& queue_time = AddHistogram(
      "vllm:request_queue_time_seconds", "Time waiting before the first step.", RequestBuckets());
  prometheus::Histogram& inference_time =
      AddHistogram("vllm:request_inference_time_seconds", "Time in the batch.", RequestBuckets());
  prometheus::Histogram& prefill_time = AddHistogram("vllm:request_prefill_time_seconds",
                                                     "Time until the first token, without waiting.",
                                                     RequestBuckets());
  prometheus::Histogram& decode_time =
      AddHistogram("vllm:request_decode_time_seconds", "First token to last.", RequestBuckets());
  prometheus::Histogram& request_prompt =
      AddHistogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", token_counts);
  prometheus::Histogram& request_generation = AddHistogram(
      "vllm:request_generation_tokens", "Generated tokens of a request.", token_counts);
  prometheus::Histogram& request_max_tokens =
      AddHistogram("vllm:request_params_max_tokens", "max_tokens of a request.", token_counts);
  prometheus::Histogram& request_n =
      AddHistogram("vllm:request_params_n", "n of a request.", {1, 2, 5, 10, 20});
  prometheus::Histogram& iteration_tokens =
      AddHistogram("vllm:iteration_tokens_total",
                   "Tokens computed in a step.",
                   {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384});
  uint64_t last_step = 0;

  prometheus::Family<prometheus::Counter>& success = prometheus::BuildCounter()
                                                         .Name("vllm:request_success_total")
                                                         .Help("Finished requests.")
                                                         .Register(registry);
  prometheus::Family<prometheus::Counter>& rejected = prometheus::BuildCounter()
                                                          .Name("baltoro:requests_rejected_total")
                                                          .Help("Requests refused, by reason.")
                                                          .Register(registry);
  prometheus::Family<prometheus::Counter>& http = prometheus::BuildCounter()
                                                      .Name("http_requests_total")
                                                      .Help("HTTP requests answered.")
                                                      .Register(registry);
  prometheus::Family<prometheus::Histogram>& http_duration =
      prometheus::BuildHistogram()
          .Name("http_request_duration_seconds")
          .Help("Time to answer a request.")
          .Register(registry);
};

Metrics::Metrics(const std::string& model_name, int64_t max_model_len)
    : state_(std::make_unique<State>(model_name, max_model_len)) {
  auto& sleep = prometheus::BuildGauge()
                    .Name("vllm:engine_sleep_state")
                    .Help("One of the states is 1.")
                    .Register(state_->registry);
  for (const char* name : {"awake", "weights_offloaded", "discard_all"}) {
    Labels labels = state_->labels;
    labels["sleep_state"] = name;
    sleep.Add(labels).Set(std::string_view(name) == "awake" ? 1 : 0);
  }
}

Metrics::~Metrics() = default;

void Metrics::SetCacheConfig(const CacheConfigInfo& info) {
  Labels labels = {{"engine", "0"},
                   {"num_gpu_blocks", std::to_string(info.num_blocks)},
                   {"block_size", std::to_string(info.block_tokens)},
                   {"cache_dtype", info.cache_dtype},
                   {"enable_prefix_caching", info.enable_prefix_caching ? "True" : "False"},
                   {"gpu_memory_utilization", std::to_string(info.memory_utilization)}};
  prometheus::BuildGauge()
      .Name("vllm:cache_config_info")
      .Help("Settings of the KV cache.")
      .Register(state_->registry)
      .Add(labels)
      .Set(1);
}

void Metrics::Update(const EngineStats& stats) {
  const std::lock_guard lock(state_->update_mutex);
  state_->running.Set(stats.running);
  state_->waiting.Set(stats.waiting);
  state_->kv_usage.Set(stats.kv_usage);
  state_->preemptions.Follow(stats.preemptions);
  state_->prefix_queries.Follow(stats.prefix_queries);
  state_->prefix_hits.Follow(stats.prefix_hits);
  state_->generation_tokens.Follow(stats.generation_tokens);
  state_->local_compute.Follow(stats.prompt_tokens_computed);
  if (stats.step != state_->last_step) {
    state_->last_step = stats.step;
    state_->iteration_tokens.Observe(static_cast<double>(stats.step_tokens_last));
  }
}

void Metrics::ObserveRequest(int64_t prompt_tokens, int64_t max_tokens, int32_t n) {
  state_->request_prompt.Observe(static_cast<double>(prompt_tokens));
  state_->request_max_tokens.Observe(static_cast<double>(max_tokens));
  state_->request_n.Observe(n);
}

void Metrics::ObserveFirstToken(double seconds) {
  state_->first_token.Observe(seconds);
}
void Metrics::ObserveInterToken(double seconds) {
  state_->inter_token.Observe(seconds);
}

void Metrics::ObserveFinish(std::string_view reason,
                            int64_t prompt_tokens,
                            int64_t output_tokens,
                            int64_t cached_tokens,
                            const RequestTimes& times) {
  Labels labels = state_->labels;
  labels["finished_reason"] = std::string(reason);
  state_->success.Add(labels).Increment();
  state_->prompt_tokens.Increment(static_cast<double>(prompt_tokens));
  state_->cached_tokens.Increment(static_cast<double>(cached_tokens));
  state_->request_generation.Observe(static_cast<double>(output_tokens));
  state_->queue_time.Observe(times.queue);
  state_->prefill_time.Observe(times.prefill);
  state_->decode_time.Observe(times.decode);
  state_->inference_time.Observe(times.inference);
  state_->end_to_end.Observe(times.end_to_end);
  if (output_tokens > 1)
    state_->per_token.Observe(times.decode / static_cast<double>(output_tokens - 1));
}

void Metrics::ObserveHttp(const std::string& route,
                          const std::string& method,
                          int status,
                          double seconds) {
  const std::string group = std::to_string(status / 100) + "xx";
  state_->http.Add({{"handler", route}, {"method", method}, {"status", group}}).Increment();
  static const Buckets buckets = {.01, .05, .1, .5, 1, 5, 10, 60};
  state_->http_duration.Add({{"handler", route}, {"method", method}}, buckets).Observe(seconds);
}

void Metrics::CountRejected(const std::string& reason) {
  state_->rejected.Add({{"reason", reason}}).Increment();
}

std::string Metrics::Scrape() const {
  return prometheus::TextSerializer().Serialize(state_->registry.Collect());
}

}  // namespace baltoro
