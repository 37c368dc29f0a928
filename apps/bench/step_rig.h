#pragma once

// A model with drawn weights, or one tensor rank's share of it, a cache full of keys, and steps to
// time. With several ranks each has a rig, on a thread of its own; all make the same calls.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/status.h"
#include "bench/absent_replicas.h"
#include "bench/draft_rig.h"
#include "bench/step_floor.h"
#include "bench/step_routing.h"
#include "bench/step_seat.h"
#include "cache/kv_storage.h"
#include "flags/bench_options.h"
#include "model/k2_model.h"
#include "ops/thread_pool.h"
#include "parallel/expert_balance.h"

namespace baltoro {

// Measured in the same run.
struct MachineRates {
  double read_bytes = 0;  // a second, of a kernel that only reads
  double flops = 0;       // a second, of a large square product in the activation type
};

struct StepTiming {
  double median = 0, p99 = 0, least = 0, most = 0;  // seconds, from the call to the last result
  RoutedWork routed = {};                           // mean over the steps
  std::vector<std::string> told = {};               // with --explain: K2Model::Explain of a step
};
StepTiming TimingOf(std::vector<double> seconds, const RoutedWork& routed);

// Of a cycle of drafts: from the call to the drafts of the next one.
struct CycleTiming {
  StepTiming whole;
  double verified = 0, drafted = 0;  // seconds, medians: until tokens are known, and from then on
};

class StepRig {
 public:
  static Result<std::unique_ptr<StepRig>> Create(const BenchStepCommand& command,
                                                 const StepSeat& seat);

  // kResourceExhausted: the keys do not fit beside the weights.
  Result<StepTiming> Decode(int64_t batch, int64_t context);
  Result<StepTiming> Prefill(int64_t tokens);
  // With --move-experts: from now on experts move in each step that is timed.
  void MoveExperts();
  // Of the steps timed last, those in which two experts went out and two came in: how many, and
  // their times, empty where there was none.
  int64_t full_rounds() const { return std::ssize(full_rounds_); }
  StepTiming FullRounds() const { return TimingOf(full_rounds_, {}); }
  // With --speculative: of `batch` sequences whose last row sees `context` keys.
  Result<CycleTiming> Cycle(int64_t batch, int64_t context);
  // After another table of kernels: steps are recorded anew.
  void ForgetRecorded() {
    if (!command_.enforce_eager) model_->UseGraphs();
  }

  const K2Config& config() const { return config_; }
  const RankShare& share() const { return share_; }
  const DraftRig* draft() const { return drafter_.get(); }
  const WeightNeeds& needs() const { return needs_; }
  const MachineRates& rates() const { return rates_; }
  const std::string& machine() const { return machine_; }
  KvForm kv() const { return kv_form_; }
  // Of replicas that share experts: the busiest rank's rows through the mean of all.
  double unevenness() const { return routing_->unevenness(); }
  int64_t cache_blocks() const { return std::ssize(blocks_); }  // of all that share the keys
  int64_t memory_used() const { return memory_used_; }

 private:
  StepRig() = default;
  Status Load(const BenchStepCommand& command, const StepSeat& seat);
  Status DrawRouting(const BenchStepCommand& command, const OpsTable& ops, int64_t tokens_max);
  Status MakeCache(const BenchStepCommand& command, const StepSeat& seat);
  Status MakeDraft(const BenchStepCommand& command);
  // Times `command.repeats` steps of a batch.
  Result<StepTiming> Time(ForwardBatch batch);
  // Draws a step's experts, for `tokens` rows of each replica, and brings them to where banks find
  // them.
  Result<RoutedWork> BringRouting(int64_t tokens);
  ExpertSlots DrawPlacement(const BalanceShape& shape);
  int32_t DrawAccepted(std::mt19937_64& random) const;

  BenchStepCommand command_;
  K2Config config_;
  KvForm kv_form_ = KvForm::kBf16;
  std::string machine_;
  MachineRates rates_;
  WeightNeeds needs_;
  std::unique_ptr<ThreadPool> pool_;
  OpsTable ops_;
  std::unique_ptr<StepRouting> routing_;
  Buffer choices_, router_logits_, logits_;
  RankShare share_;
  std::unique_ptr<ModelRanks> ranks_;   // null: the model is whole
  AbsentReplicas* replicas_ = nullptr;  // of ranks_, where replicas share experts
  bool moves_ = false;
  std::mt19937_64 loads_random_;
  std::vector<double> full_rounds_;  // seconds
  std::unique_ptr<K2Model> model_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<KvStorage> storage_;
  std::unique_ptr<DraftRig> drafter_;  // with --speculative
  std::vector<KvLayerView> cache_;
  std::vector<int32_t> blocks_;  // of the caches of all that share the keys, in no order
  int64_t memory_used_ = 0;
};

}  // namespace baltoro
