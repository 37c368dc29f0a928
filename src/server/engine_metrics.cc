#include "server/engine_metrics.h"

#include <fmt/format.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <algorithm>
#include <map>
#include <vector>

#include "base/check.h"
#include "server/metric_buckets.h"
#include "server/metric_follower.h"

namespace baltoro {
namespace {

using Labels = std::map<std::string, std::string>;
using Buckets = MetricBuckets;

}  // namespace

struct EngineMetrics::State {
  prometheus::Registry& registry;
  Labels labels;

  void ObserveSteps(const EngineStats& stats);

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

  prometheus::Counter& AddSource(const char* source) {
    Labels with_source = labels;
    with_source["source"] = source;
    return prometheus::BuildCounter()
        .Name("vllm:prompt_tokens_by_source_total")
        .Help("Prompt tokens by where their keys and values came from.")
        .Register(registry)
        .Add(with_source);
  }

  State(prometheus::Registry& all, const MetricsShape& shape, int32_t replica)
      : registry(all),
        labels{{"model_name", shape.model_name},
               {"engine", std::to_string(shape.first_replica + replica)}},
        token_counts(Decades(shape.max_model_len)),
        log(AddLog(all, EngineProcessName(shape, replica))) {
    if (shape.drafts_max > 0) drafts.emplace(*this, shape.drafts_max);
    // Replicas whose experts move share them: what is told of them is of all.
    if (shape.moves_experts && replica == 0) balance.emplace(*this);
  }

  // There where drafts are, as in vLLM.
  struct DraftFollower {
    Follower drafts, tokens, accepted;
    std::vector<Follower> accepted_at;
    prometheus::Gauge& wanted;

    DraftFollower(State& state, int32_t drafts_max)
        : drafts(state.AddCounter("vllm:spec_decode_num_drafts_total",
                                  "Times that drafts of a request were verified.")),
          tokens(state.AddCounter("vllm:spec_decode_num_draft_tokens_total",
                                  "Tokens of drafts that were verified.")),
          accepted(state.AddCounter("vllm:spec_decode_num_accepted_tokens_total",
                                    "Tokens of drafts that were accepted.")),
          wanted(state.AddGauge("baltoro:spec_decode_wanted_tokens",
                                "Tokens of drafts that the newest step asked for, of a request.")) {
      auto& family = prometheus::BuildCounter()
                         .Name("vllm:spec_decode_num_accepted_tokens_per_pos_total")
                         .Help("Tokens of drafts that were accepted, by their place in the draft.")
                         .Register(state.registry);
      for (int32_t at = 0; at < drafts_max; ++at) {
        Labels of = state.labels;
        of["position"] = std::to_string(at);
        accepted_at.emplace_back(family.Add(of));
      }
    }
    void Follow(const DraftStats& stats, int32_t wanted_now) {
      wanted.Set(wanted_now);
      drafts.Follow(stats.drafts);
      tokens.Follow(stats.draft_tokens);
      accepted.Follow(stats.accepted_tokens);
      for (size_t at = 0; at < accepted_at.size(); ++at) {
        accepted_at[at].Follow(stats.accepted_at[at]);
      }
    }
  };
  std::optional<DraftFollower> drafts;

  // There where experts move.
  struct BalanceFollower {
    Follower rearrangements, moved;
    prometheus::Gauge &before, &expected, &now;

    explicit BalanceFollower(State& state)
        : rearrangements(state.AddCounter("baltoro:eplb_rearrangements_total",
                                          "Times that experts were placed by their load.")),
          moved(state.AddCounter("baltoro:eplb_moved_experts_total",
                                 "Places of experts that got another expert, over all layers.")),
          before(state.AddGauge("baltoro:eplb_balancedness_before",
                                "Mean load of a rank through that of the busiest, of the window "
                                "of the last rearrangement; -1 before the first one.")),
          expected(state.AddGauge("baltoro:eplb_balancedness_expected",
                                  "What it would have been in that window with experts as they "
                                  "were placed then; -1 before the first rearrangement.")),
          now(state.AddGauge("baltoro:eplb_balancedness",
                             fmt::format("Mean load of a rank through that of the busiest, of the "
                                         "last {} steps; -1 before they are over.",
                                         kBalanceSteps)
                                 .c_str())) {}
    void Follow(const BalanceStats& stats) {
      rearrangements.Follow(stats.rearrangements);
      moved.Follow(stats.moved_experts);
      before.Set(stats.balancedness_before);
      expected.Set(stats.balancedness_expected);
      now.Set(stats.balancedness);
    }
  };
  std::optional<BalanceFollower> balance;

  Buckets token_counts;
  EngineStats last;

  prometheus::Gauge& running =
      AddGauge("vllm:num_requests_running", "Requests that are being computed.");
  prometheus::Gauge& waiting = AddGauge(
      "vllm:num_requests_waiting", "Requests that wait to be computed, those set back among them.");
  prometheus::Gauge& kv_usage =
      AddGauge("vllm:kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1.");
  prometheus::Gauge& last_step =
      AddGauge("baltoro:last_step_seconds", "Seconds that the newest step took.");
  prometheus::Gauge& ready =
      AddGauge("baltoro:engine_ready", "1 while this engine serves requests; else 0.");
  Follower preemptions{
      AddCounter("vllm:num_preemptions_total",
                 "Times that a request was set back for want of KV cache blocks.")};
  Follower prefix_queries{AddCounter("vllm:prefix_cache_queries_total",
                                     "Prompt tokens looked up in the prefix cache.")};
  Follower prefix_hits{
      AddCounter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.")};
  Follower generation_tokens{AddCounter("vllm:generation_tokens_total", "Tokens generated.")};
  Follower computed_prompt_tokens{
      AddCounter("baltoro:prompt_tokens_computed_total",
                 "Tokens of prompts that went through the model, those computed again included.")};
  Follower step_seconds{
      AddCounter("baltoro:step_seconds_total",
                 "Seconds that the engine spent in steps; the rest of the time it had no work.")};
  Follower restarts{AddCounter("baltoro:engine_restarts_total",
                               "Times that the engine's process was started again.")};
  LogFollower log;
  prometheus::Counter& prompt_tokens =
      AddCounter("vllm:prompt_tokens_total", "Prompt tokens of requests with a first token.");
  prometheus::Counter& cached_tokens =
      AddCounter("vllm:prompt_tokens_cached_total", "Prompt tokens taken from a cache.");
  prometheus::Counter& computed_source = AddSource("local_compute");
  prometheus::Counter& cached_source = AddSource("local_cache_hit");

  prometheus::Histogram& first_token = AddHistogram("vllm:time_to_first_token_seconds",
                                                    "Seconds from arrival to the first token.",
                                                    FirstTokenBuckets());
  prometheus::Histogram& inter_token =
      AddHistogram("vllm:inter_token_latency_seconds",
                   "Seconds between successive tokens of a request.",
                   TokenBuckets());
  prometheus::Histogram& per_token = AddHistogram("vllm:request_time_per_output_token_seconds",
                                                  "Mean seconds between the tokens of a request.",
                                                  TokenBuckets());
  prometheus::Histogram& end_to_end = AddHistogram(
      "vllm:e2e_request_latency_seconds", "Seconds from arrival to the end.", RequestBuckets());
  prometheus::Histogram& queue_time = AddHistogram("vllm:request_queue_time_seconds",
                                                   "Seconds from arrival to the first step.",
                                                   RequestBuckets());
  prometheus::Histogram& inference_time =
      AddHistogram("vllm:request_inference_time_seconds",
                   "Seconds from the first step to the last token.",
                   RequestBuckets());
  prometheus::Histogram& prefill_time =
      AddHistogram("vllm:request_prefill_time_seconds",
                   "Seconds from the first step to the first token.",
                   RequestBuckets());
  prometheus::Histogram& decode_time = AddHistogram("vllm:request_decode_time_seconds",
                                                    "Seconds from the first token to the last.",
                                                    RequestBuckets());
  prometheus::Histogram& request_prompt =
      AddHistogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", token_counts);
  prometheus::Histogram& request_generation = AddHistogram(
      "vllm:request_generation_tokens", "Generated tokens of a request.", token_counts);
  prometheus::Histogram& request_max_tokens =
      AddHistogram("vllm:request_params_max_tokens", "max_tokens of a request.", token_counts);
  prometheus::Histogram& request_n =
      AddHistogram("vllm:request_params_n", "n of a request.", {1, 2, 5, 10, 20});
  prometheus::Histogram& request_longest =
      AddHistogram("vllm:request_max_num_generation_tokens",
                   "Generated tokens of the longest choice of a request.",
                   token_counts);
  prometheus::Histogram& request_computed =
      AddHistogram("vllm:request_prefill_kv_computed_tokens",
                   "Prompt tokens of a request that no cache held.",
                   token_counts);
  prometheus::Histogram& iteration_tokens =
      AddHistogram("vllm:iteration_tokens_total",
                   "Tokens computed in a step; a snapshot's steps count with their mean.",
                   IterationBuckets());
  prometheus::Family<prometheus::Gauge>& cache_config =
      prometheus::BuildGauge()
          .Name("vllm:cache_config_info")
          .Help("Settings of the KV cache, as labels; the value is 1.")
          .Register(registry);
  prometheus::Gauge* cache = nullptr;  // null before there is an engine

  // By finished_reason; every series exists from the start.
  std::map<std::string, prometheus::Counter*, std::less<>> success;
};

EngineMetrics::EngineMetrics(prometheus::Registry& registry,
                             const MetricsShape& shape,
                             int32_t replica)
    : state_(std::make_unique<State>(registry, shape, replica)) {
  auto& sleep = prometheus::BuildGauge()
                    .Name("vllm:engine_sleep_state")
                    .Help("The state that is 1 is the engine's; here it is always awake.")
                    .Register(state_->registry);
  for (const char* name : {"awake", "weights_offloaded", "discard_all"}) {
    Labels labels = state_->labels;
    labels["sleep_state"] = name;
    sleep.Add(labels).Set(std::string_view(name) == "awake" ? 1 : 0);
  }
  auto& success = prometheus::BuildCounter()
                      .Name("vllm:request_success_total")
                      .Help("Requests that ended, by reason; each of n choices counts.")
                      .Register(state_->registry);
  for (const char* reason : {"stop", "length", "abort", "error"}) {
    Labels labels = state_->labels;
    labels["finished_reason"] = reason;
    state_->success[reason] = &success.Add(labels);
  }
}

EngineMetrics::~EngineMetrics() = default;

const EngineStats& EngineMetrics::last() const {
  return state_->last;
}

void EngineMetrics::SetCacheConfig(const CacheConfigInfo& info) {
  Labels labels = {{"engine", state_->labels.at("engine")},
                   {"num_gpu_blocks", std::to_string(info.num_blocks)},
                   {"block_size", std::to_string(info.block_tokens)},
                   {"cache_dtype", info.cache_dtype},
                   {"enable_prefix_caching", info.enable_prefix_caching ? "True" : "False"},
                   {"gpu_memory_utilization", fmt::format("{}", info.memory_utilization)}};
  if (state_->cache != nullptr) state_->cache_config.Remove(state_->cache);
  state_->cache = &state_->cache_config.Add(labels);
  state_->cache->Set(1);
}

void EngineMetrics::Update(const EngineStats& stats, bool serves) {
  state_->ready.Set(serves ? 1 : 0);
  state_->running.Set(stats.running);
  state_->waiting.Set(stats.waiting);
  state_->kv_usage.Set(stats.kv_usage);
  state_->last_step.Set(stats.step_seconds_last);
  state_->preemptions.Follow(stats.preemptions);
  state_->prefix_queries.Follow(stats.prefix_queries);
  state_->prefix_hits.Follow(stats.prefix_hits);
  state_->generation_tokens.Follow(stats.generation_tokens);
  state_->computed_prompt_tokens.Follow(stats.prompt_tokens_computed);
  state_->step_seconds.Follow(stats.step_seconds);
  state_->restarts.Follow(stats.restarts);
  if (state_->drafts) state_->drafts->Follow(stats.drafts, stats.drafts_wanted);
  if (state_->balance) state_->balance->Follow(stats.balance);
  state_->log.Follow(stats.log_drops);
  state_->ObserveSteps(stats);
  state_->last = stats;
}

// There is a snapshot for many steps: count and sum are right, and each step since the last
// snapshot stands with their mean.
void EngineMetrics::State::ObserveSteps(const EngineStats& stats) {
  const auto tokens = [](const EngineStats& of) {
    return of.prompt_tokens_computed + of.generation_tokens;
  };
  if (stats.step <= last.step || tokens(stats) < tokens(last)) return;
  const auto steps = static_cast<double>(stats.step - last.step);
  const auto sum = static_cast<double>(tokens(stats) - tokens(last));
  const Buckets& buckets = IterationBuckets();
  std::vector<double> increments(buckets.size() + 1, 0);
  const auto bucket = std::lower_bound(buckets.begin(), buckets.end(), sum / steps);
  increments[static_cast<size_t>(bucket - buckets.begin())] = steps;
  iteration_tokens.ObserveMultiple(increments, sum);
}

void EngineMetrics::ObserveFirstToken(double seconds,
                                      int64_t prompt_tokens,
                                      int64_t cached_tokens) {
  state_->first_token.Observe(seconds);
  state_->prompt_tokens.Increment(static_cast<double>(prompt_tokens));
  state_->cached_tokens.Increment(static_cast<double>(cached_tokens));
  state_->computed_source.Increment(static_cast<double>(prompt_tokens - cached_tokens));
  state_->cached_source.Increment(static_cast<double>(cached_tokens));
}

void EngineMetrics::ObserveInterToken(double seconds) {
  state_->inter_token.Observe(seconds);
}

void EngineMetrics::ObserveFinish(const FinishedChoice& choice) {
  const auto counter = state_->success.find(choice.reason);
  BT_CHECK(counter != state_->success.end());
  counter->second->Increment();
  state_->request_prompt.Observe(static_cast<double>(choice.prompt_tokens));
  state_->request_generation.Observe(static_cast<double>(choice.output_tokens));
  state_->request_max_tokens.Observe(static_cast<double>(choice.max_tokens));
  state_->end_to_end.Observe(choice.end_to_end_seconds);
  if (choice.queue_seconds) state_->queue_time.Observe(*choice.queue_seconds);
  if (!choice.answered) return;
  state_->request_computed.Observe(
      static_cast<double>(choice.prompt_tokens - choice.cached_tokens));
  state_->prefill_time.Observe(choice.prefill_seconds);
  state_->decode_time.Observe(choice.decode_seconds);
  state_->inference_time.Observe(choice.inference_seconds);
  if (choice.output_tokens > 1) {
    state_->per_token.Observe(choice.decode_seconds /
                              static_cast<double>(choice.output_tokens - 1));
  }
}

void EngineMetrics::ObservePrompt(int32_t n, int64_t longest) {
  state_->request_n.Observe(n);
  state_->request_longest.Observe(static_cast<double>(longest));
}

}  // namespace baltoro
