#pragma once

// What /metrics says, under vLLM's names, so that existing dashboards keep working. Labels come
// from closed sets only. Any thread.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "request/request.h"
#include "server/picture_cache.h"
#include "server/request_span.h"

namespace baltoro {

// Facts fixed at start, shown as vllm:cache_config_info.
struct CacheConfigInfo {
  int64_t num_blocks = 0;
  int64_t block_tokens = 64;
  std::string cache_dtype;
  bool enable_prefix_caching = true;
  double memory_utilization = 0.9;  // --gpu-memory-utilization
};

// Of the server's own process, now.
struct DoorStats {
  // Of unfinished requests, and of answers that clients have not read.
  size_t held_bodies = 0, held_answers = 0;
  LogDrops log_drops = {};
  ProcessUse process = {};
  SpanCounts spans = {};
  PictureCache::Counts pictures = {};
};

// One finished choice.
struct FinishedChoice {
  std::string_view reason;  // stop, length, abort or error
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0, max_tokens = 0;
  bool answered = false;                     // at least one token came
  std::optional<double> queue_seconds = {};  // if the engine said when the wait ended
  double prefill_seconds = 0, decode_seconds = 0, inference_seconds = 0, end_to_end_seconds = 0;
};

// One HTTP request and its answer. The names come from the server's own tables, never from a
// client.
struct HttpObservation {
  std::string_view route, method;
  int status = 0;
  double seconds = 0;
  size_t request_bytes = 0, response_bytes = 0;
};

// Why a request was refused.
enum class Rejection {
  kInvalid,        // 400
  kUnauthorized,   // 401
  kForbidden,      // 403: a page of another machine
  kNotFound,       // 404, 405
  kHttp,           // what net refuses: limits of headers and bodies, time, framing
  kQueueFull,      // 429, the engine's queue
  kPreparingFull,  // 429, too many large bodies
  kAnswersFull,    // 503, too many bytes of answers that clients have not read
  kNotReady,       // 503
  kDraining,       // 503
  kEngine          // the engine's own reasons
};

struct MetricsShape {
  std::string model_name;
  int64_t max_model_len = 0;
  int32_t drafts_max = 0;      // that a step verifies of a request; 0: none, nor their metrics
  bool moves_experts = false;  // else there are no metrics of that
  int32_t replicas = 1;        // engines, each with the label of its number
  int32_t first_replica = 0;   // the number of the first
};

// How the process of the `replica`th engine is called, in logs and labels, as in vLLM.
std::string EngineProcessName(const MetricsShape& shape, int32_t replica);

class EngineMetrics;

class Metrics {
 public:
  explicit Metrics(const MetricsShape& shape);
  ~Metrics();

  // What its requests are observed with: engine_metrics.h.
  EngineMetrics& engine(int32_t replica);
  // Of the engine that there is now; an earlier one's are forgotten.
  void SetCacheConfig(int32_t replica, const CacheConfigInfo& info);
  // Gauges and counters that the engine counts; called before each scrape and each log line.
  void Update(int32_t replica, const EngineStats& stats, bool serves);
  // Called before each scrape.
  void UpdateDoor(const DoorStats& stats);

  void ObserveHttp(const HttpObservation& seen);
  void CountRejected(Rejection reason);

  // Prometheus text, version 0.0.4.
  std::string Scrape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
