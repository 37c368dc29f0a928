#pragma once

// Of /metrics what belongs to one engine: the replica of that number, and the requests that it
// answered. One thread at a time but for what Observe... names.

#include <memory>

#include "server/metrics.h"

namespace prometheus {
class Registry;
}

namespace baltoro {

class EngineMetrics {
 public:
  // `registry` outlives it.
  EngineMetrics(prometheus::Registry& registry, const MetricsShape& shape, int32_t replica);
  ~EngineMetrics();

  void SetCacheConfig(const CacheConfigInfo& info);
  void Update(const EngineStats& stats, bool serves);
  const EngineStats& last() const;

  // Any thread.
  void ObserveFirstToken(double seconds, int64_t prompt_tokens, int64_t cached_tokens);
  void ObserveInterToken(double seconds);
  void ObserveFinish(const FinishedChoice& choice);
  void ObservePrompt(int32_t n, int64_t longest);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace baltoro
