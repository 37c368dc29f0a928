#pragma once

// One seeded life of a door with its replicas: a ReplicaGroup over simulated engines, or over one
// whose replicas share experts, which die, stand still, become slow and come back, and clients that
// know what they must receive, some of which hang up. What other threads would do beside a call of
// the group happens within the calls that it makes, which it makes under no lock.

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "route/replica_group.h"
#include "route/testing/simulated_engine.h"

namespace baltoro::test {

struct ReplicasReport {
  std::string violation;  // empty: none
  uint64_t trace = 0;     // hash of every event and placement
  int64_t requests = 0, tokens = 0, aborts = 0, moves = 0, lost = 0, full = 0, none_serves = 0;
  int64_t deaths = 0, given_up = 0, steps = 0, idle_members = 0, not_admitted = 0;
  int64_t beside = 0, stopped = 0;  // stopped: requests that the end of the door ended
};

class ReplicasSimulation {
 public:
  ReplicasSimulation(int seed, int ticks);
  ~ReplicasSimulation();
  ReplicasReport Run();

 private:
  struct Client {
    Request request;
    uint64_t chain = 0;  // of prompt and tokens so far
    int32_t received = 0, received_after_abort = 0;
    bool started = false, ended = false;
    Milliseconds aborted_at = -1;  // below 0: it has not hung up
    int32_t replica = -1;          // that it was given to last
    uint64_t birth = 0;            // of that replica's process
    int32_t placements = 0;
  };

  // What a replica is asked, before it is.
  class Watched;

  void MakeEngines();
  void Tick(bool faults);
  void SubmitOne();
  Request RandomRequest();
  void AbortOne();
  void Trouble();
  void Beside();
  void OnAsked(int32_t replica, const Request& request);
  void OnGiven(int32_t replica, const Request& request, const Status& status);
  void OnEvents(std::vector<TokenEvent> events);
  void CheckEvent(Client& client, const TokenEvent& event);
  void CheckLost(const Client& client, const TokenEvent& event);
  void CheckRefusal(const Request& request, const Status& status, uint64_t disturbed);
  void CheckCounts();
  void CheckEnd();
  bool Serves(int32_t replica) const;
  bool HasRoom(int32_t replica, const Request& request) const;
  void Trace(uint64_t value);

  SimulatedWorld world_;
  const int ticks_;
  int32_t replicas_ = 1;
  bool shares_ = false;  // experts: there is one engine
  SimulatedEngine::Settings settings_;
  int arrival_one_in_ = 1, abort_one_in_ = 1, trouble_one_in_ = 1, beside_one_in_ = 1;
  bool dies_ = false, stands_still_ = false, slows_ = false, pins_ = false;
  bool poison_ = false;  // some requests end the process that has them
  int prompt_max_ = 0, output_max_ = 0;
  std::vector<std::vector<TokenId>> prefixes_;

  std::vector<SimulatedEngine*> engines_;  // one, or one a replica
  std::vector<std::unique_ptr<SimulatedEngine>> made_;
  std::unique_ptr<ReplicaGroup> group_;
  bool gone_ = false;  // the door
  std::unordered_map<uint64_t, Client> clients_;
  std::vector<uint64_t> open_;        // ids of those that wait for their final event
  std::vector<bool> served_;          // each replica, when the tick began
  std::vector<size_t> blocks_given_;  // to each since the door last knew it to begin anew
  uint64_t next_id_ = 1;
  uint64_t disturbed_ = 0;  // how often something happened beside a call
  int depth_ = 0;           // of calls beside calls
  ReplicasReport report_;
};

}  // namespace baltoro::test
