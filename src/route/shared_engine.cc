#include "route/shared_engine.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "schedule/planted_bug.h"

namespace baltoro {

class SharedEngine::OneReplica final : public Engine {
 public:
  OneReplica(std::shared_ptr<SharedEngine> shared, int32_t replica)
      : shared_(std::move(shared)), replica_(replica) {}

  Status Submit(Request request) override {
    request.replica = replica_;
    return shared_->engine_->Submit(std::move(request));
  }
  void Abort(RequestId id) override { shared_->engine_->Abort(id); }
  EngineStats stats() const override { return shared_->engine_->stats_of(replica_); }
  const EngineInfo& info() const override { return shared_->engine_->info(); }
  EngineHealth health() const override { return shared_->engine_->health(); }
  Status end() const override { return shared_->engine_->end(); }
  // There is one recording of them all: the first one asks for it.
  void Profile(const ProfileAsk& ask, const ProfileDone& done) override {
    if (replica_ == 0) return shared_->engine_->Profile(ask, done);
    done({}, {});
  }
  void Leave() override {
    if (replica_ == 0) shared_->engine_->Leave();
  }

 private:
  const std::shared_ptr<SharedEngine> shared_;
  const int32_t replica_;
};

Result<std::shared_ptr<SharedEngine>> SharedEngine::Start(int32_t replicas,
                                                          const Starter& starter) {
  auto shared = std::make_shared<SharedEngine>();
  shared->sinks_.resize(static_cast<size_t>(replicas));
  BT_ASSIGN_OR_RETURN(shared->engine_,
                      starter([raw = shared.get()](std::vector<TokenEvent> events) {
                        raw->OnEvents(std::move(events));
                      }));
  const int32_t has = shared->engine_->info().replicas;
  if (has == replicas) return shared;
  return Status(Code::kInternal,
                fmt::format("the engine has {} replicas, {} were asked for", has, replicas));
}

std::unique_ptr<Engine> SharedEngine::Member(const std::shared_ptr<SharedEngine>& engine,
                                             int32_t replica,
                                             EventSink sink) {
  engine->sinks_[static_cast<size_t>(replica)] = std::move(sink);
  return std::make_unique<OneReplica>(engine, replica);
}

// An engine tells of its replicas one by one, and of all at once when it is gone.
void SharedEngine::OnEvents(std::vector<TokenEvent> events) {
  std::vector<std::vector<TokenEvent>> sorted(sinks_.size());
  for (TokenEvent& event : events) {
    const bool mixed_up = Planted(PlantedBug::kEventsOfOneForAll);
    const auto replica = mixed_up ? 0 : static_cast<size_t>(event.replica);
    BT_CHECK(replica < sorted.size());
    sorted[replica].push_back(std::move(event));
  }
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (!sorted[i].empty()) sinks_[i](std::move(sorted[i]));
  }
}

}  // namespace baltoro
