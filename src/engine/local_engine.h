#pragma once

// An engine inside this process: an executor, a step loop and their thread.

#include <memory>
#include <mutex>
#include <optional>
#include <thread>

#include "engine/balance_gauge.h"
#include "engine/engine.h"
#include "engine/executor.h"
#include "engine/step_loop.h"

namespace baltoro {

// The part of the configuration that the scheduler needs, with a fresh secret for its hashes.
SchedulerConfig MakeSchedulerConfig(const EngineConfig& config, const EngineInfo& info, int stages);
// Nothing without a target, and with --deterministic, which says itself how prompts are cut. Of a
// pipeline each plan is a part of the time between two tokens of a stream.
std::optional<StepBudget> MakeStepBudget(const EngineConfig& config,
                                         const EngineInfo& info,
                                         int stages);

class LocalEngine final : public Engine {
 public:
  // With a factory, the table is the one that the executor looks into, and info.constraints is set.
  LocalEngine(const EngineConfig& config,
              const EngineInfo& info,
              std::unique_ptr<Executor> executor,
              EventSink sink,
              const std::shared_ptr<ConstraintFactory>& factory = nullptr,
              std::shared_ptr<ConstraintTable> table = nullptr,
              std::shared_ptr<const BalanceGauge> balance = nullptr);  // null: no experts move
  // Ends every open request with kAbort.
  ~LocalEngine() override;

  Status Submit(Request request) override;
  void Abort(RequestId id) override { loop_.Abort(id); }
  EngineStats stats() const override;
  const EngineInfo& info() const override { return info_; }
  EngineHealth health() const override;
  Status end() const override;
  void Profile(const ProfileAsk& ask, const ProfileDone& done) override;
  void Leave() override { executor_->Leave(); }

 private:
  void WriteProfile(const ProfileAsk& ask, const ProfileDone& done);

  const EngineInfo info_;
  const std::shared_ptr<const BalanceGauge> balance_;
  std::unique_ptr<Executor> executor_;
  StepLoop loop_;
  std::thread thread_;
  std::mutex profile_mutex_;
  std::thread profile_writer_;    // under the mutex
  bool profile_writing_ = false;  // likewise
};

}  // namespace baltoro
