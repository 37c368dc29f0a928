#pragma once

// The door's side of an engine in another process: starts it, speaks to it, and starts it again
// when it dies. One of another node is not started: it comes, and comes again, by itself.

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "engine/agreed_info.h"
#include "engine/carried_things.h"
#include "engine/engine.h"
#include "engine/engine_wire.h"
#include "engine/frame_connection.h"

namespace baltoro {

// Engines of other nodes.
struct ComingEngine {
  std::string name;  // for the log: "Replica 2"
  // Blocks until the engine has come, and returns the connected socket, which the caller owns;
  // below 0 once `stopped` says so. Empty: this process starts the engine.
  std::function<int(const std::function<bool()>& stopped)> take_connection;
  std::shared_ptr<AgreedInfo> agreed;
};

struct RemoteEngineOptions {
  std::vector<std::string> command;  // program and arguments
  HealthLimits health;
  Seconds backoff_first = 0.1, backoff_max = 60;  // between the end of one and the next
  Seconds healthy_after = 10;  // a process that was ready for so long starts the back-off anew
  // So long without such a process, and over several starts; 0: never. A start takes what it takes:
  // the time begins when one has ended.
  Seconds give_up_after = 0;
  // Of the pixels of pictures. What is too much is refused with kResourceExhausted, but for what
  // one request alone brings.
  int64_t picture_bytes_max = int64_t{4} << 30;         // in use by open requests
  int64_t picture_idle_bytes_max = int64_t{256} << 20;  // kept for the next turn of a talk
  // Of all that the process has not read, likewise.
  int64_t unsent_bytes_max = int64_t{1} << 30;
  ComingEngine coming = {};
};

class RemoteEngine final : public Engine {
 public:
  // Returns when the first process is ready or has said why it cannot be. With an engine that comes
  // by itself: when it is known what clients are told, whether this one has come or not.
  static Result<std::unique_ptr<Engine>> Start(const EngineConfig& config,
                                               const RemoteEngineOptions& options,
                                               EventSink sink,
                                               LoadProgress progress);
  // Ends every open request with kLost, and the process.
  ~RemoteEngine() override;

  Status Submit(Request request) override;
  void Abort(RequestId id) override;
  EngineStats stats() const override;
  EngineStats stats_of(int32_t replica) const override;
  const EngineInfo& info() const override { return *info_; }
  EngineHealth health() const override;
  Status end() const override;
  void Profile(const ProfileAsk& ask, const ProfileDone& done) override;

  // Of the process now running; -1 when there is none.
  pid_t pid() const;

 private:
  struct OpenProfile {
    ProfileDone done;
    int64_t until_ns = 0;  // as ProfileAsk has it
  };
  struct OpenRequest {
    int64_t prompt_tokens = 0;
    uint64_t constraint = 0;         // its name; 0: none
    std::vector<uint64_t> pictures;  // their names
    int32_t replica = 0;             // of several that share experts
    bool started = false;            // no longer counts towards the limits of the queue
  };
  enum class State { kLoading, kReady, kDown, kStopping };

  RemoteEngine(const EngineConfig& config,
               const RemoteEngineOptions& options,
               EventSink sink,
               LoadProgress progress);
  void Supervise();
  // One process from start to end. True if it was ready for long enough to be called healthy.
  bool RunOnce();
  // Likewise of one connection of an engine that comes by itself.
  bool RunConnection();
  void KeepCounters();
  Status Handle(const Frame& frame);
  struct Queue {
    int64_t requests = 0, tokens = 0;
  };
  Queue& QueueOf(const OpenRequest& open) { return queues_[static_cast<size_t>(open.replica)]; }
  void LeaveQueue(const OpenRequest& open);
  // What travels apart from a request, in a frame each. Its keys are known before mutex_ is taken.
  struct Luggage;
  static Luggage Unpack(Request& request);
  Status CheckRoom(const Luggage& luggage, size_t payload_bytes) const;
  std::vector<uint64_t> Carry(CarriedThings& account,
                              const std::vector<CarriedThing>& things,
                              const std::vector<SharedBytes>& bytes);
  void TellDropped(CarriedThings& account);
  Status OnReady(const EngineInfo& info);
  void GiveUpLateStarts();
  void OnStep(std::vector<TokenEvent> events);
  void OnStats(ToldStats told);
  void OnProfiled(uint64_t number, const Status& status, const Json& said);
  void FailOpenRequests(const std::string& why);
  void CloseRequest(std::unordered_map<RequestId, OpenRequest>::iterator open);
  bool WaitBeforeRestart();
  bool GivesUp(bool was_healthy);
  void Watch();
  EngineVerdict Judge() const;
  EngineTrouble TroubleOf(const Status& said) const;
  // A node that is not the head: without one it has nothing to do.
  bool Follows() const { return config_.node_rank > 0; }
  bool Comes() const { return options_.coming.take_connection != nullptr; }
  bool Answered() const { return info_.has_value() || first_failure_.has_value() || !end_.ok(); }

  EngineConfig config_;  // the supervisor's; kv_cache_bytes is pinned once known
  const RemoteEngineOptions options_;
  const EventSink sink_;
  const LoadProgress progress_;
  const MonotonicClock clock_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Below: under mutex_. info_ is written once, before Start() returns.
  State state_ = State::kLoading;
  std::optional<EngineInfo> info_;
  std::optional<Status> first_failure_;
  Status end_;                                    // why no process will be started again
  std::string last_reason_;                       // that a process gave for its end
  EngineTrouble trouble_ = EngineTrouble::kNone;  // why there is none that is ready
  int32_t lost_node_ = -1;                        // with kNoPeer: whose end was why
  bool said_why_ = false;                         // the process now running, or the last one
  int failed_starts_ = 0;
  Seconds next_start_at_ = 0;  // 0: no start is waited for
  int starts_in_vain_ = 0;     // since one stayed
  Seconds away_since_ = 0;     // when that ended, or the first start of all; 0: none has
  std::shared_ptr<FrameConnection>
      connection_;  // shared: a sender may hold it while it is replaced
  pid_t pid_ = -1;
  std::unordered_map<RequestId, OpenRequest> open_;
  std::vector<Queue> queues_ = std::vector<Queue>(1);       // of each replica
  std::unordered_map<uint64_t, OpenProfile> profile_asks_;  // of this process, by their numbers
  uint64_t profile_asks_made_ = 0;
  CarriedThings constraints_, pictures_;  // of this process
  uint64_t last_name_ = 0;                // of either
  EngineStats stats_;                     // of this process
  EngineStats stats_past_;                // counters of the processes before it
  // Likewise of each of several replicas that share experts.
  std::vector<EngineStats> replica_stats_, replica_past_;
  Seconds heard_at_ = 0, ready_at_ = 0;
  Seconds trial_step_ = 0;  // of the process now running
  uint64_t restarts_ = 0;

  std::thread supervisor_, watcher_;  // started last
};

}  // namespace baltoro
