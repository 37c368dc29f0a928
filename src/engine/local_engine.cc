#include "engine/local_engine.h"

#include <random>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "base/profile.h"
#include "engine/request_check.h"

namespace baltoro {

SchedulerConfig MakeSchedulerConfig(const EngineConfig& config,
                                    const EngineInfo& info,
                                    int stages) {
  SchedulerConfig scheduler;
  scheduler.num_blocks = static_cast<int32_t>(info.num_blocks);
  scheduler.max_model_len = info.max_model_len;
  scheduler.max_num_seqs = config.max_num_seqs;
  scheduler.max_num_batched_tokens = config.max_num_batched_tokens;
  scheduler.max_queued_requests = config.max_queued_requests;
  scheduler.enable_prefix_caching = config.enable_prefix_caching;
  scheduler.priority_policy = config.priority_scheduling;
  scheduler.stages = stages;
  scheduler.drafts_max = config.speculation.drafts;
  scheduler.picture_rows = info.picture_rows;
  scheduler.picture_layers = info.picture_layers;
  scheduler.picture_patches_max = info.picture_patches_max;
  scheduler.picture_ranks = info.picture_ranks;
  scheduler.share_prompts_only = config.deterministic;
  scheduler.prompt_chunk = info.fixed.prompt_chunk;
  if (info.fixed.decode_rows > 0) scheduler.decode_rows = info.fixed.decode_rows;
  std::random_device random;
  for (uint64_t& word : scheduler.hash_secret) word = uint64_t{random()} << 32 | random();
  return scheduler;
}

namespace {

SchedulerConfig SchedulerConfigFor(const EngineConfig& config,
                                   const EngineInfo& info,
                                   const Executor& executor) {
  SchedulerConfig scheduler = MakeSchedulerConfig(config, info, executor.stages());
  scheduler.sends_constraints = executor.samples_elsewhere();
  return scheduler;
}

}  // namespace

std::optional<StepBudget> MakeStepBudget(const EngineConfig& config,
                                         const EngineInfo& info,
                                         int stages) {
  if (config.target_step_ms <= 0 || config.deterministic) return std::nullopt;
  return StepBudget(config.target_step_ms / 1000 / stages, config.max_num_batched_tokens,
                    info.longest_step_seconds,
                    {.patch = info.picture_patch_tokens, .pair = info.picture_pair_tokens});
}

LocalEngine::LocalEngine(const EngineConfig& config,
                         const EngineInfo& info,
                         std::unique_ptr<Executor> executor,
                         EventSink sink,
                         const std::shared_ptr<ConstraintFactory>& factory,
                         std::shared_ptr<ConstraintTable> table,
                         std::shared_ptr<const BalanceGauge> balance)
    : info_(info),
      balance_(std::move(balance)),
      executor_(std::move(executor)),
      loop_(SchedulerConfigFor(config, info, *executor_),
            *executor_,
            std::move(sink),
            factory,
            std::move(table),
            MakeStepBudget(config, info, executor_->stages()),
            config.speculation),
      thread_([this] { loop_.Run(); }) {
  BT_CHECK(info.constraints == (factory != nullptr));
}

LocalEngine::~LocalEngine() {
  loop_.Stop();
  thread_.join();
  if (profile_writer_.joinable()) profile_writer_.join();
}

// A recording is written on a thread of its own: it may be long, and nobody waits for it here.
void LocalEngine::Profile(const ProfileAsk& ask, const ProfileDone& done) {
  Status answer;
  {
    const std::lock_guard lock(profile_mutex_);
    if (profile_writing_) {
      answer = InvalidArgument("a profile is being written; its /stop_profile answers when it is");
    } else if (ask.start && ask.until_ns != 0 && ProfileNow() > ask.until_ns) {
      answer = Status(Code::kUnavailable, "nobody waits for this start any more");
    } else if (ask.start) {
      answer = StartProfile();
    } else {
      // The one before has written its file; its thread ends.
      if (profile_writer_.joinable()) profile_writer_.join();
      profile_writing_ = true;
      profile_writer_ = std::thread([this, ask, done] { WriteProfile(ask, done); });
      return;
    }
  }
  done(answer, {});
}

void LocalEngine::WriteProfile(const ProfileAsk& ask, const ProfileDone& done) {
  const Result<ProfileSummary> written = StopProfile(ask.dir, ask.gzip);
  {
    const std::lock_guard lock(profile_mutex_);
    profile_writing_ = false;  // before the answer, after which another may be asked for
  }
  if (!written.ok()) {
    return done(Status(written.status().code(),
                       "--profiler-config torch_profiler_dir: " + written.status().message()),
                {});
  }
  BT_LOG(Info, "Profile: {}, {} events", written.value().path, written.value().events);
  done({}, {{"file", written.value().path},
            {"events", written.value().events},
            {"events_left_out", written.value().left_out}});
}

EngineStats LocalEngine::stats() const {
  EngineStats stats = loop_.stats();
  if (balance_ != nullptr) stats.balance = balance_->stats();
  return stats;
}

EngineHealth LocalEngine::health() const {
  if (!loop_.alive()) {
    return {
        .trouble = EngineTrouble::kEnded, .next_start = {}, .lost_node = executor_->lost_node()};
  }
  const EngineVerdict verdict = JudgeEngine(loop_.stats(), 0, info_.longest_step_seconds);
  return {.trouble = verdict.trouble, .next_start = {}};
}

Status LocalEngine::end() const {
  if (loop_.alive()) return {};
  const Status why = loop_.failure();
  return Status(Code::kUnavailable, why.ok() ? "its steps cannot be computed" : why.message());
}

Status LocalEngine::Submit(Request request) {
  BT_RETURN_IF_ERROR(CheckRequest(request, info_));
  return loop_.Submit(std::move(request));
}

}  // namespace baltoro
