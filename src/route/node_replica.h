#pragma once

// One replica of a node without a door: an engine of this node, and its connection to the head's
// door. The engine outlives the connection: when the door is away, what was asked for is dropped,
// and the engine stays loaded until the door is back, or does not come back in time.

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_set>
#include <vector>

#include "base/clock.h"
#include "engine/engine.h"
#include "route/replica_gate.h"

namespace baltoro {

class EngineConnection;

struct NodeReplicaOptions {
  int32_t replica = 0;
  ReplicaMeeting meeting = {};
  // How long the door is waited for, at the first time and from then on; 0: for ever.
  Seconds first_patience = 300, patience = 7;
  // How long another one may have this number.
  Seconds taken_patience = 15;
  // Called once, when the door has found this node to be as it must be; may take minutes.
  std::function<Result<std::unique_ptr<Engine>>(EventSink sink)> maker = {};
};

class NodeReplica {
 public:
  explicit NodeReplica(const NodeReplicaOptions& options);
  // Waits for an engine that is still being made.
  ~NodeReplica();
  NodeReplica(const NodeReplica&) = delete;
  NodeReplica& operator=(const NodeReplica&) = delete;

  // One thread, once. Returns OK when the door says that the server stops, else why this replica
  // cannot go on: kInvalidArgument where something must be changed first, kNotFound where the door
  // did not come in time, or as the engine says.
  Status Run();

 private:
  class Tracked;

  Result<int> Reach(Seconds patience);
  void Load();
  Status Attend(int fd);
  void Beats(EngineConnection& connection,
             std::unique_ptr<Tracked>& tracked,
             const std::stop_token& stop);
  void OnEvents(const std::vector<TokenEvent>& events);
  void DropRequests();
  // Null: not there yet, or never.
  Engine* engine() const;
  Status EngineEnd() const;

  const NodeReplicaOptions options_;
  const std::string name_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Below: under mutex_.
  std::unique_ptr<Engine> engine_;
  Status load_failure_;
  std::shared_ptr<EngineConnection> connection_;  // null: there is no door
  std::unordered_set<RequestId> open_;            // of the engine

  std::thread loader_;
};

}  // namespace baltoro
