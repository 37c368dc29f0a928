#pragma once

// An engine of several replicas that share experts, as one engine for each of them, among which a
// ReplicaGroup chooses. They are one failure domain: all are there, or none is.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/engine.h"

namespace baltoro {

class SharedEngine {
 public:
  using Starter = std::function<Result<std::unique_ptr<Engine>>(EventSink sink)>;

  // kInternal where the engine that was started has another number of replicas.
  static Result<std::shared_ptr<SharedEngine>> Start(int32_t replicas, const Starter& starter);

  // Of each replica once, before any has a request. It keeps the engine.
  static std::unique_ptr<Engine> Member(const std::shared_ptr<SharedEngine>& engine,
                                        int32_t replica,
                                        EventSink sink);

 private:
  class OneReplica;

  void OnEvents(std::vector<TokenEvent> events);

  std::vector<EventSink> sinks_;    // of each replica
  std::unique_ptr<Engine> engine_;  // last: it may tell of ends until it is gone
};

}  // namespace baltoro
