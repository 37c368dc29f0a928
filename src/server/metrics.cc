#include "server/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/summary.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "base/check.h"
#include "server/engine_metrics.h"
#include "server/metric_buckets.h"
#include "server/metric_follower.h"
#include "server/process_metrics.h"

namespace baltoro {
namespace {

using Labels = std::map<std::string, std::string>;
using Buckets = MetricBuckets;

constexpr std::pair<Rejection, const char*> kRejections[] = {
    {Rejection::kInvalid, "invalid"},
    {Rejection::kUnauthorized, "unauthorized"},
    {Rejection::kForbidden, "forbidden"},
    {Rejection::kNotFound, "not_found"},
    {Rejection::kHttp, "http"},
    {Rejection::kQueueFull, "queue_full"},
    {Rejection::kPreparingFull, "preparing_full"},
    {Rejection::kAnswersFull, "answers_full"},
    {Rejection::kNotReady, "not_ready"},
    {Rejection::kDraining, "draining"},
    {Rejection::kEngine, "engine"},
};

}  // namespace

std::string EngineProcessName(const MetricsShape& shape, int32_t replica) {
  if (shape.replicas == 1) return "EngineCore";
  return fmt::format("EngineCore_DP{}", shape.first_replica + replica);
}

struct Metrics::State {
  prometheus::Registry registry;
  Labels labels;

  explicit State(const MetricsShape& of)
      : labels{{"model_name", of.model_name}, {"engine", std::to_string(of.first_replica)}},
        shape(of) {
    for (int32_t replica = 0; replica < shape.replicas; ++replica) {
      engines.push_back(std::make_unique<EngineMetrics>(registry, shape, replica));
    }
  }

  prometheus::Gauge& AddGauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add(labels);
  }
  prometheus::Counter& AddCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels);
  }

  const MetricsShape shape;
  std::vector<std::unique_ptr<EngineMetrics>> engines;
  std::mutex update_mutex;  // scrapes may come from several I/O threads

  prometheus::Gauge& held_bodies =
      AddGauge("baltoro:held_body_bytes", "Bytes of requests that are not complete yet.");
  prometheus::Gauge& held_answers =
      AddGauge("baltoro:held_answer_bytes", "Bytes of answers that clients have not taken yet.");
  Follower spans_exported{AddCounter("baltoro:trace_spans_exported_total",
                                     "Spans of requests that the collector of traces took.")};
  Follower AddDroppedSpans(const char* reason) {
    return Follower(prometheus::BuildCounter()
                        .Name("baltoro:trace_spans_dropped_total")
                        .Help("Spans of requests that no collector of traces has.")
                        .Register(registry)
                        .Add({{"reason", reason}}));
  }
  Follower spans_queue_full = AddDroppedSpans("queue_full");
  Follower spans_undelivered = AddDroppedSpans("undelivered");
  Follower picture_queries{
      AddCounter("vllm:mm_cache_queries_total", "Pictures looked up among those decoded before.")};
  Follower picture_hits{
      AddCounter("vllm:mm_cache_hits_total", "Pictures found among those decoded before.")};
  LogFollower door_log = AddLog(registry, "APIServer");
  ProcessUse door;  // under update_mutex

  std::map<Rejection, prometheus::Counter*> rejected;

  prometheus::Family<prometheus::Counter>& http =
      prometheus::BuildCounter()
          .Name("http_requests_total")
          .Help("HTTP requests answered, without those of /metrics, /health and the like.")
          .Register(registry);
  prometheus::Family<prometheus::Histogram>& http_duration =
      prometheus::BuildHistogram()
          .Name("http_request_duration_seconds")
          .Help("Seconds from a request's last byte to the end of its answer.")
          .Register(registry);
  prometheus::Family<prometheus::Summary>& http_request_bytes =
      prometheus::BuildSummary()
          .Name("http_request_size_bytes")
          .Help("Bytes of the bodies of requests.")
          .Register(registry);
  prometheus::Family<prometheus::Summary>& http_response_bytes =
      prometheus::BuildSummary()
          .Name("http_response_size_bytes")
          .Help("Bytes of the bodies of answers.")
          .Register(registry);
};

Metrics::Metrics(const MetricsShape& shape) : state_(std::make_unique<State>(shape)) {
  auto& rejected = prometheus::BuildCounter()
                       .Name("baltoro:requests_rejected_total")
                       .Help("Requests refused, by reason.")
                       .Register(state_->registry);
  for (const auto& [reason, name] : kRejections) {
    state_->rejected[reason] = &rejected.Add({{"reason", name}});
  }
}

Metrics::~Metrics() = default;

EngineMetrics& Metrics::engine(int32_t replica) {
  return *state_->engines.at(static_cast<size_t>(replica));
}

void Metrics::SetCacheConfig(int32_t replica, const CacheConfigInfo& info) {
  const std::lock_guard lock(state_->update_mutex);
  engine(replica).SetCacheConfig(info);
}

void Metrics::Update(int32_t replica, const EngineStats& stats, bool serves) {
  const std::lock_guard lock(state_->update_mutex);
  engine(replica).Update(stats, serves);
}

void Metrics::UpdateDoor(const DoorStats& stats) {
  const std::lock_guard lock(state_->update_mutex);
  state_->held_bodies.Set(static_cast<double>(stats.held_bodies));
  state_->held_answers.Set(static_cast<double>(stats.held_answers));
  state_->door_log.Follow(stats.log_drops);
  state_->door = stats.process;
  state_->spans_exported.Follow(stats.spans.exported);
  state_->spans_queue_full.Follow(stats.spans.queue_full);
  state_->spans_undelivered.Follow(stats.spans.undelivered);
  state_->picture_queries.Follow(stats.pictures.queries);
  state_->picture_hits.Follow(stats.pictures.hits);
}

void Metrics::ObserveHttp(const HttpObservation& seen) {
  const Labels handler = {{"handler", std::string(seen.route)}};
  Labels labels = handler;
  labels["method"] = seen.method;
  static const Buckets buckets = {.01, .05, .1, .5, 1, 5, 10, 60};
  state_->http_duration.Add(labels, buckets).Observe(seen.seconds);
  labels["status"] = std::to_string(seen.status / 100) + "xx";
  state_->http.Add(labels).Increment();
  // Without quantiles a summary is a count and a sum, as upstream's is.
  static const prometheus::Summary::Quantiles quantiles = {};
  state_->http_request_bytes.Add(handler, quantiles)
      .Observe(static_cast<double>(seen.request_bytes));
  state_->http_response_bytes.Add(handler, quantiles)
      .Observe(static_cast<double>(seen.response_bytes));
}

void Metrics::CountRejected(Rejection reason) {
  state_->rejected.at(reason)->Increment();
}

std::string Metrics::Scrape() const {
  std::vector<prometheus::MetricFamily> families = state_->registry.Collect();
  {
    const std::lock_guard lock(state_->update_mutex);
    std::vector<NamedProcess> processes = {{"APIServer", state_->door}};
    for (size_t i = 0; i < state_->engines.size(); ++i) {
      processes.push_back({EngineProcessName(state_->shape, static_cast<int32_t>(i)),
                           state_->engines[i]->last().process});
    }
    std::ranges::move(ProcessFamilies(processes), std::back_inserter(families));
  }
  return prometheus::TextSerializer().Serialize(families);
}

}  // namespace baltoro
