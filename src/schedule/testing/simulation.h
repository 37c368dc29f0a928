#pragma once

// One seeded life of a scheduler: random settings, arrivals, aborts, failures, drafts and commit
// lag, against a mock executor and clients that know what they must receive.

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "schedule/scheduler.h"
#include "schedule/testing/fairness_check.h"
#include "schedule/testing/mock_executor.h"

namespace baltoro::test {

struct SimulationReport {
  std::string violation;  // empty: none
  uint64_t trace = 0;     // hash of every plan and event
  int64_t requests = 0, tokens = 0, aborts = 0, failures = 0, preemptions = 0, hit_tokens = 0;
  int64_t encodes = 0;  // steps that do
  int64_t draft_steps = 0, refusals = 0, constraint_ends = 0, limited_steps = 0;
};

class Simulation {
 public:
  Simulation(uint64_t seed, int ticks);
  SimulationReport Run();

 private:
  struct Client {
    Request request;
    uint64_t arrival = 0;
    uint64_t chain = 0;  // of prompt and tokens so far
    int32_t received = 0;
    bool aborted = false, ended = false, started = false;
    int32_t fail_at = -1, end_at = -1;
    int32_t bypassed = 0;
    int32_t tokens_max = 0;
  };
  struct Flight {
    StepPlan plan;
    StepResult result;
  };

  void Tick(bool faults);
  void SubmitOne();
  Request RandomRequest();
  void AddPictures(Request& request);
  void AbortOne();
  void PlanOne();
  StepCosts RandomCosts();
  void CommitOne();
  void Receive();
  void CheckEvent(Client& client, const TokenEvent& event);
  void CheckTokens(Client& client, const TokenEvent& event);
  void CheckBlocks();
  void CheckLimits(const StepPlan& plan);
  void CheckDrafts(const StepPlan& plan);
  void CheckPipeline(const StepPlan& plan);
  bool DecodesInSlot(const PlannedSequence& planned) const;
  void CountBypasses();
  void Trace(uint64_t value);
  void Violate(const std::string& what);
  bool Chance(int one_in) { return random_() % one_in == 0; }
  int Between(int low, int high) { return low + static_cast<int>(random_() % (high - low + 1)); }

  std::mt19937_64 random_;
  int ticks_;
  SchedulerConfig config_;
  int lag_ = 0;
  int arrival_one_in_ = 1, abort_one_in_ = 1;
  bool urgent_ = false, failures_ = false, prompt_logprobs_ = false, constraints_ = false;
  bool limits_ = false;
  std::vector<RequestPicture> pictures_;  // that requests may have; none: they have none
  int owners_ = 1;
  StepCosts costs_;
  int prompt_max_ = 0, output_max_ = 0;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<MockExecutor> executor_;
  std::unique_ptr<FairnessCheck> fairness_;
  std::deque<Flight> flights_;
  std::unordered_map<uint64_t, Client> clients_;
  std::vector<uint64_t> open_;  // ids of clients that wait for their final event
  std::vector<std::vector<TokenId>> prefixes_;
  uint64_t next_id_ = 1;
  SimulationReport report_;
};

}  // namespace baltoro::test
