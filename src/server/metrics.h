#pragma once

// What /metrics says, under vLLM's names, so that existing dashboards keep working. Labels come
// from closed sets only. Any thread.

#include <cstdint>
#include <memory>
#include <string>

#include "engine/engine.h"
#include "request/request.h"

namespace baltoro {

// Facts fixed at start, shown as vllm:cache_config_info.
struct CacheConfigInfo {
  int64_t num_blocks = 0;
  int64_t block_tokens = 64;
  std::string cache_dtype;
  bool enable_prefix_caching = true;
  double memory_utilization = 0.9;
};

// Times in seconds of one finished request.
struct RequestTimes {
  double queue = 0, prefill = 0, decode = 0, inference = 0, end_to_end = 0;
};

class Metrics {
 public:
  Metrics(const std::string& model_name, int64_t max_model_len);
  ~Metrics();

  void SetCacheConfig(const CacheConfigInfo& info);
  // Gauges and counters that the engine counts; called before each scrape and each log line.
  void Update(const EngineStats& stats);

  void ObserveRequest(int64_t prompt_tokens, int64_t max_tokens, int32_t n);
  void ObserveFirstToken(double seconds);
  void ObserveInterToken(double seconds);
  void ObserveFinish(std::string_view reason,
                     int64_t prompt_tokens,
                     int64_t output_tokens,
                     int64_t cached_tokens,
                     const RequestTimes& times);
  // `route` is one of the server's own names for its routes, never what a client sent.
  void ObserveHttp(const std::string& route, const std::string& method, int status, double seconds);
  void CountRejected(const std::string& reason);

  // Prometheus text, version 0.0.4.
  std::string Scrape() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
