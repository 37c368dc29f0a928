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
  bool serving = false;  // /health is 200
  // Of unfinished requests, and of answers that clients have not read.
  size_t held_bodies = 0, held_answers = 0;
  LogDrops log_drops = {};
  ProcessUse process = {};
  SpanCounts spans = {};
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

class Metrics {
 public:
  // A step verifies up to `drafts_max` drafts of a request; 0: there are none, nor their metrics.
  Metrics(const std::string& model_name, int64_t max_model_len, int32_t drafts_max = 0);
  ~Metrics();

  // Of the engine that there is now; an earlier one's are forgotten.
  void SetCacheConfig(const CacheConfigInfo& info);
  // Gauges and counters that the engine counts; called before each scrape and each log line.
  void Update(const EngineStats& stats);
  // Called before each scrape.
  void UpdateDoor(const DoorStats& stats);

  // A choice's first token, `seconds` after the request came.
  void ObserveFirstToken(double seconds, int64_t prompt_tokens, int64_t cached_tokens);
  void ObserveInterToken(double seconds);
  void ObserveFinish(const FinishedChoice& choice);
  // The choices of one prompt are over; `longest` is the most tokens of one of them.
  void ObservePrompt(int32_t n, int64_t longest);
  void ObserveHttp(const HttpObservation& seen);
  void CountRejected(Rejection reason);

  // Prometheus text, version 0.0.4.
  std::string Scrape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
