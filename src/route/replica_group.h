#pragma once

// Replicas of a model behind one door, as one engine: a request goes to the one that answers it
// first (replica_choice.h). Each is a failure domain: what ends with one of them is only what it
// has begun to answer. Requests that it has not answered a token of go to another one.

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "route/known_prefixes.h"
#include "route/replica_choice.h"

namespace baltoro {

class ReplicaGroup final : public Engine {
 public:
  using Maker = std::function<Result<std::unique_ptr<Engine>>(int32_t replica, EventSink sink)>;

  // Makes all replicas, at once, each on a thread of its own; returns when they are ready, or one
  // has said why it cannot be.
  static Result<std::unique_ptr<Engine>> Start(int32_t count, const Maker& maker, EventSink sink);
  // The same on this thread alone, one after the other.
  static Result<std::unique_ptr<ReplicaGroup>> StartInTurn(int32_t count,
                                                           const Maker& maker,
                                                           EventSink sink);
  // Ends every open request with kLost.
  ~ReplicaGroup() override;

  // kInvalidArgument too where Request::replica names none; kResourceExhausted where the queues of
  // all replicas are full, kUnavailable where none serves.
  Status Submit(Request request) override;
  void Abort(RequestId id) override;
  // Sums, and of what is no sum the largest.
  EngineStats stats() const override;
  // Of the first: they are all alike.
  const EngineInfo& info() const override { return replicas_.front().engine->info(); }
  // OK while one serves; else the first one's.
  EngineHealth health() const override;
  // OK while one may work again; else why the first one never will.
  Status end() const override;
  // All replicas record; `said` has "replicas", what each said.
  void Profile(const ProfileAsk& ask, const ProfileDone& done) override;
  void Leave() override;
  std::vector<const Engine*> replicas() const override;

  // For tests: what it counts of each replica, how many blocks it takes for known there, and how
  // many requests it has.
  std::vector<ReplicaLoad> loads() const;
  size_t known_blocks(int32_t replica) const;
  size_t open_requests() const;

 private:
  struct Replica {
    std::unique_ptr<Engine> engine;
    KnownPrefixes known{0};
    int64_t waiting_tokens = 0;
    int32_t open = 0;
  };
  struct Open {
    std::shared_ptr<const Request> request;  // null once it is answered
    std::vector<Hash128> names;              // of its prompt's blocks, until then
    int32_t replica = -1;                    // that has it; below 0: none
    int64_t waiting_tokens = 0;              // that it counts for there
    bool started = false, aborted = false;
    int32_t moves = 0;
  };
  using OpenRequests = std::unordered_map<RequestId, Open>;

  ReplicaGroup(int32_t count, EventSink sink);
  Status Make(int32_t replica, const Maker& maker);
  std::vector<int32_t> Rank(const Open& open);
  Status Place(RequestId id);
  Status PlaceAt(RequestId id, int32_t replica);
  void OnEvents(int32_t replica, std::vector<TokenEvent> events);
  void Answered(Open& open);
  void LeaveReplica(Open& open);

  const EventSink sink_;
  const PrefixNames names_;
  std::vector<Replica> replicas_;  // as many from the start on; `engine` is written by Start alone

  // Under it: what is below, and of the replicas all but `engine`. No engine is called under it.
  mutable std::mutex mutex_;
  OpenRequests open_;
  int32_t last_ = -1;  // chosen
  bool stopping_ = false;
};

}  // namespace baltoro
