#pragma once

// Replicas that share experts, as one engine of one process: each has a scheduler, a cache and a
// step loop of its own, and all compute together (group_team.h). They begin and end as one.

#include <memory>
#include <vector>

#include "engine/engine.h"
#include "engine/local_engine.h"

namespace baltoro {

class ExpertGroup final : public Engine {
 public:
  explicit ExpertGroup(std::vector<std::unique_ptr<LocalEngine>> replicas)
      : replicas_(std::move(replicas)) {}
  // What a replica tells, by its number.
  static EventSink SinkOf(int32_t replica, const EventSink& sink);

  // kInvalidArgument too where Request::replica names none: whoever has the requests chooses.
  Status Submit(Request request) override;
  void Abort(RequestId id) override;
  EngineStats stats() const override;
  EngineStats stats_of(int32_t replica) const override {
    return replicas_[static_cast<size_t>(replica)]->stats();
  }
  const EngineInfo& info() const override { return replicas_.front()->info(); }
  // Ended once all have, since each has last events to tell.
  EngineHealth health() const override;
  Status end() const override;
  // Of the process, which is theirs together.
  void Profile(const ProfileAsk& ask, const ProfileDone& done) override;
  void Leave() override { replicas_.front()->Leave(); }

 private:
  const std::vector<std::unique_ptr<LocalEngine>> replicas_;
};

}  // namespace baltoro
