#pragma once

// An engine process and what the door has of it (RemoteEngine), simulated: one thread, a clock that
// the simulation moves, and randomness that it deals out. The process has a scheduler for each of
// its replicas, a stand-in for their ranks, and the coordinator of their steps; around them are
// step loops without threads. It can die, stand still and become slow; it starts again by itself.

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/engine_health.h"
#include "engine/group_steps.h"
#include "engine/turn_history.h"
#include "schedule/scheduler.h"
#include "schedule/testing/mock_executor.h"

namespace baltoro::test {

using Milliseconds = int64_t;

// What simulated engines share with the simulation.
struct SimulatedWorld {
  Milliseconds now = 0;
  std::mt19937_64 random;
  std::string violation;  // the first; empty: none
  // Things that happen beside a call into an engine, as other threads would do them.
  std::function<void()> beside = [] {};

  bool Chance(int one_in) { return random() % static_cast<uint64_t>(one_in) == 0; }
  int Between(int low, int high) {
    return low + static_cast<int>(random() % static_cast<uint64_t>(high - low + 1));
  }
  void Violate(const std::string& what) {
    if (violation.empty()) violation = what;
  }
};

struct SimulatedEngineCounts {
  int64_t steps = 0, idle_members = 0;  // members without a plan, in steps
  int64_t deaths = 0, given_up = 0;     // given_up: by the door, since it stood still
  int64_t not_admitted = 0;             // plans that balance kept requests out of
};

class SimulatedEngine final : public Engine {
 public:
  struct Settings {
    SchedulerConfig scheduler;
    int32_t replicas = 1;  // that share experts
    bool balance = false;
    Milliseconds step = 50;           // what one takes, about
    Milliseconds restart_max = 3000;  // until a process that died is ready again
    HealthLimits health;
  };

  SimulatedEngine(const Settings& settings, SimulatedWorld& world);
  ~SimulatedEngine() override;
  void SetSink(EventSink sink) { sink_ = std::move(sink); }

  Status Submit(Request request) override;
  void Abort(RequestId id) override;
  EngineStats stats() const override;
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override;

  // What happens to the process.
  void Die();
  void StandStill(Milliseconds how_long);
  void BeSlow(int factor, Milliseconds how_long);
  void Heal();  // it moves, and is as fast as others
  // The door notices that it is gone, if it is.
  void NoticeEnd();
  // All that happens until now.
  void Tick();

  bool process_runs() const { return process_ == Process::kRuns; }
  bool moves() const { return process_runs() && world_.now >= still_until_; }
  bool slow() const { return world_.now < slow_until_; }
  Milliseconds dead_since() const { return dead_since_; }  // below 0: it lives
  // As the door sees it.
  int32_t open(int32_t replica) const;
  bool has_room(int32_t replica, int64_t tokens) const;
  uint64_t births() const { return births_; }
  const SimulatedEngineCounts& counts() const { return counts_; }
  bool idle() const { return open_.empty(); }
  bool busy() const { return ticking_; }
  bool ready() const { return ready_; }
  bool has(RequestId id) const { return open_.contains(id); }

 private:
  enum class Process : uint8_t { kStarts, kRuns, kDead };
  enum class Phase : uint8_t { kTurns, kAsks, kComputes };
  struct Arrival {
    Milliseconds at = 0;
    RequestId id{};
    std::optional<Request> request;  // empty: an abort
  };
  struct Member {
    std::unique_ptr<Scheduler> scheduler;
    std::unique_ptr<MockExecutor> executor;
    std::deque<Arrival> inbox;
    Phase phase = Phase::kTurns;
    Milliseconds turn_at = 0;
    bool thinks = false;                // since its last result, until it has a plan or rests
    bool full = false;                  // when it last began a turn
    bool settled = true;                // since its last plan it has said whether it is
    bool refused = false;               // it might not admit requests when it last asked
    uint64_t refused_in = 0;            // step
    std::vector<uint64_t> untold;       // results that its ranks shall hear of next
    std::vector<PlannedSequence> plan;  // that is to be computed; empty: none is
  };
  struct Computed {
    Milliseconds at = 0;
    int32_t replica = 0;
    StepResult result;
  };
  struct Sent {
    Milliseconds at = 0;
    std::vector<TokenEvent> events;
  };
  struct OpenRequest {
    int32_t replica = 0;
    int64_t tokens = 0;
    bool started = false;
  };

  void Start();
  void RunMember(int32_t replica);
  void Turn(int32_t replica);
  void PlanStep(int32_t replica, bool admits);
  void CheckAdmission(int32_t replica);
  void RunSteps();
  void CheckBegin(const PlanMessages& messages);
  void Send(int32_t replica, std::vector<TokenEvent> events);
  void Deliver();
  void FailOpenRequests(const std::string& why);
  void LeaveQueue(const OpenRequest& open);
  void Beat();
  EngineVerdict Judge() const;
  void LookWhetherLost();
  Member& At(int32_t replica) { return members_[static_cast<size_t>(replica)]; }

  const Settings settings_;
  SimulatedWorld& world_;
  EngineInfo info_;
  EventSink sink_;
  SimulatedEngineCounts counts_;

  // The process.
  Process process_ = Process::kRuns;
  Milliseconds still_until_ = 0, slow_until_ = 0, starts_at_ = 0, dead_since_ = -1, end_at_ = 0;
  int slow_factor_ = 1;
  uint64_t births_ = 0;
  std::vector<Member> members_;
  std::unique_ptr<GroupSteps> steps_;
  std::vector<Computed> computed_;  // of the step that is computed
  Milliseconds step_began_ = 0;
  TurnHistory turns_;
  uint64_t step_ = 0;

  // At the door.
  bool ready_ = true, ticking_ = false;
  Milliseconds heard_at_ = 0, next_beat_ = 0;
  int lost_looks_ = 0;
  EngineStats stats_;
  std::deque<Sent> sent_;  // on its way to the door
  std::unordered_map<RequestId, OpenRequest> open_;
  std::vector<int64_t> queue_requests_, queue_tokens_;
};

}  // namespace baltoro::test
