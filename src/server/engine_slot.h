#pragma once

// Where the server keeps its engine. The owner may put another one in, or none, while I/O threads
// use it: Set returns only when no call into the former engine is under way. Any thread.

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace baltoro {

struct ReplicaState {
  EngineStats stats;
  EngineHealth health;
};

class EngineSlot {
 public:
  // Null: no engine; requests are refused and aborts are nothing.
  void Set(Engine* engine) {
    const std::unique_lock lock(mutex_);
    engine_ = engine;
    if (engine != nullptr) info_ = engine->info();
  }

  Status Submit(Request request) {
    const std::shared_lock lock(mutex_);
    if (engine_ == nullptr) return Status(Code::kUnavailable, "The engine is not ready.");
    return engine_->Submit(std::move(request));
  }
  void Abort(RequestId id) {
    const std::shared_lock lock(mutex_);
    if (engine_ != nullptr) engine_->Abort(id);
  }
  void Profile(const ProfileAsk& ask, const ProfileDone& done) {
    const std::shared_lock lock(mutex_);
    if (engine_ != nullptr) return engine_->Profile(ask, done);
    done(Status(Code::kUnavailable, "The engine is not ready."), {});
  }
  bool present() const {
    const std::shared_lock lock(mutex_);
    return engine_ != nullptr;
  }
  bool healthy() const {
    const std::shared_lock lock(mutex_);
    return engine_ != nullptr && engine_->healthy();
  }
  // Empty: there is none.
  std::optional<EngineHealth> health() const {
    const std::shared_lock lock(mutex_);
    if (engine_ == nullptr) return std::nullopt;
    return engine_->health();
  }
  // Of each of its replicas; empty: there is no engine.
  std::vector<ReplicaState> replicas() const {
    const std::shared_lock lock(mutex_);
    std::vector<ReplicaState> out;
    if (engine_ == nullptr) return out;
    for (const Engine* replica : engine_->replicas()) {
      out.push_back({.stats = replica->stats(), .health = replica->health()});
    }
    return out;
  }
  // Of the engine, or of the last one; empty before the first.
  std::optional<EngineInfo> info() const {
    const std::shared_lock lock(mutex_);
    return info_;
  }

 private:
  mutable std::shared_mutex mutex_;
  Engine* engine_ = nullptr;
  std::optional<EngineInfo> info_;
};

}  // namespace baltoro
