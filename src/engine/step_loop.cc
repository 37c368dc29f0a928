#include "engine/step_loop.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace baltoro {

namespace {

// An idle loop turns this often, so that it is seen to turn.
constexpr std::chrono::milliseconds kIdleTurn(50);

// Serialised constraints that wait to be made.
constexpr int64_t kPreparingBytesMax = int64_t{256} << 20;

}  // namespace

StepLoop::StepLoop(const SchedulerConfig& config,
                   Executor& executor,
                   EventSink sink,
                   std::shared_ptr<ConstraintFactory> factory,
                   std::shared_ptr<ConstraintTable> table,
                   std::optional<StepBudget> budget,
                   const SpeculationConfig& speculation,
                   const Clock* clock)
    : scheduler_(config),
      executor_(executor),
      sink_(std::move(sink)),
      table_(std::move(table)),
      clock_(clock != nullptr ? *clock : machine_clock_),
      budget_(std::move(budget)),
      draft_count_(speculation, executor.plans_in_flight()),
      turn_expected_(budget_ ? 0 : -1),
      max_num_seqs_(config.max_num_seqs),
      queued_requests_max_(config.max_queued_requests),
      queued_tokens_max_(int64_t{8} * config.num_blocks * kBlockTokens) {
  if (factory == nullptr) return;
  BT_CHECK(table_ != nullptr);
  preparer_ = std::make_unique<ConstraintPreparer>(
      std::move(factory),
      [this](RequestId id) {
        const std::lock_guard lock(mutex_);
        return preparing_.contains(id);
      },
      [this](std::unique_ptr<Request> request, auto constraint) {
        OnPrepared(std::move(request), std::move(constraint));
      });
}

StepLoop::~StepLoop() = default;

Status StepLoop::Submit(Request request) {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  const SharedBytes constraint = request.constraint;
  const RequestId id = request.id;
  auto owned = std::make_unique<Request>(std::move(request));
  const std::lock_guard lock(mutex_);
  if (stop_) return Status(Code::kUnavailable, "the engine has stopped");
  const auto preparing = static_cast<int64_t>(preparing_.size());
  const int64_t requests = queued_requests_ + inbox_requests_ + preparing;
  if (requests >= queued_requests_max_ ||
      queued_tokens_ + inbox_tokens_ + preparing_tokens_ + tokens > queued_tokens_max_) {
    return Status(Code::kResourceExhausted,
                  fmt::format("the queue is full: {} requests are waiting", requests));
  }
  if (constraint.empty()) {
    inbox_.push_back({.id = id, .request = std::move(owned), .constraint = {}, .error = {}});
    ++inbox_requests_;
    inbox_tokens_ += tokens;
    wake_.notify_one();
    return {};
  }
  BT_CHECK(preparer_ != nullptr);
  // What several requests share is there once.
  const auto bytes = static_cast<int64_t>(constraint.size());
  const bool shared = preparing_constraints_.contains(constraint.identity());
  if (!shared && preparing_bytes_ > 0 && preparing_bytes_ + bytes > kPreparingBytesMax) {
    return Status(Code::kResourceExhausted,
                  fmt::format("the queue is full: output formats of {} MiB are waiting",
                              preparing_bytes_ >> 20));
  }
  if (!preparing_.emplace(id, tokens).second)
    return Status(Code::kInternal, "the request id is in use");
  preparing_tokens_ += tokens;
  if (!shared) preparing_bytes_ += bytes;
  ++preparing_constraints_[constraint.identity()];
  preparer_->Add(std::move(owned));
  return {};
}

// On the preparer's thread.
void StepLoop::OnPrepared(std::unique_ptr<Request> request,
                          Result<std::unique_ptr<TokenConstraint>> constraint) {
  const std::lock_guard lock(mutex_);
  const auto shared = preparing_constraints_.find(request->constraint.identity());
  if (--shared->second == 0) {
    preparing_constraints_.erase(shared);
    preparing_bytes_ -= static_cast<int64_t>(request->constraint.size());
  }
  const auto found = preparing_.find(request->id);
  if (found == preparing_.end()) return;  // aborted
  const int64_t tokens = found->second;
  preparing_.erase(found);
  preparing_tokens_ -= tokens;
  Arrival arrival{.id = request->id, .request = {}, .constraint = {}, .error = {}};
  if (constraint.ok()) {
    arrival.request = std::move(request);
    arrival.constraint = std::move(constraint).value();
    ++inbox_requests_;
    inbox_tokens_ += tokens;
  } else {
    arrival.finish = FinishReason::kError;
    arrival.error = constraint.status();
  }
  inbox_.push_back(std::move(arrival));
  wake_.notify_one();
}

void StepLoop::Abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  Arrival arrival{.id = id, .request = {}, .constraint = {}, .error = {}};
  if (const auto found = preparing_.find(id); found != preparing_.end()) {
    preparing_tokens_ -= found->second;
    preparing_.erase(found);
    arrival.finish = FinishReason::kAbort;
  }
  inbox_.push_back(std::move(arrival));
  wake_.notify_one();
}

EngineStats StepLoop::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = stats_;
  stats.waiting += static_cast<int32_t>(inbox_requests_ + static_cast<int64_t>(preparing_.size()));
  stats.turn_seconds = turn_at_ > 0 ? clock_.Now() - turn_at_ : 0;
  stats.turn_expected_seconds = turn_expected_;
  stats.long_turn_seconds = long_turn_;
  return stats;
}

void StepLoop::Stop() {
  const std::lock_guard lock(mutex_);
  stop_ = true;
  wake_.notify_one();
}

Status StepLoop::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void StepLoop::Run() {
  NameProfileThread("engine");
  RunSteps();
  executor_.Admits(/*full=*/false, /*asks=*/false);
  executor_.Rest();
}

void StepLoop::RunSteps() {
  for (;;) {
    const bool idle = scheduler_.idle();
    // Before it sleeps: others do not wait for who has nothing to compute.
    if (idle) executor_.Rest();
    if (!TakeArrivals(/*wait=*/idle || stuck_)) break;
    const Status status = Step();
    if (!status.ok()) {
      // Of a node that is gone the door tells, once for all replicas.
      const bool told = IsServerStopped(status) || executor_.lost_node() >= 0;
      if (!told) BT_LOG(Error, "The engine stops: {}", status.message());
      {
        const std::lock_guard lock(mutex_);
        failure_ = status;
      }
      return EndAll(Status(Code::kUnavailable, kEngineLost));
    }
    Deliver();
  }
  EndAll({});
}

void StepLoop::BeginTurn() {
  const Seconds now = clock_.Now();
  // A turn that did nothing says nothing of how long others are.
  if (turn_at_ > 0 && !stuck_) turns_.Add(now - turn_at_);
  long_turn_ = turns_.longest();
  if (budget_) turn_expected_ = 0;
  turn_at_ = now;
}

// Hands what arrived to the scheduler. False when it is time to stop.
bool StepLoop::TakeArrivals(bool wait) {
  BeginTurn();
  arrivals_.clear();
  waited_ = wait;
  {
    std::unique_lock lock(mutex_);
    if (wait) wake_.wait_for(lock, kIdleTurn, [this] { return stop_ || !inbox_.empty(); });
    if (stop_) return false;
    arrivals_.swap(inbox_);
    // Until the scheduler is asked again they count as queued.
    stats_.waiting += static_cast<int32_t>(inbox_requests_);
    queued_requests_ = scheduler_.queued_requests() + std::exchange(inbox_requests_, 0);
    queued_tokens_ = scheduler_.queued_tokens() + std::exchange(inbox_tokens_, 0);
  }
  profiled_.BeginTurn();
  for (Arrival& arrival : arrivals_) Take(std::move(arrival));
  return true;
}

void StepLoop::Take(Arrival arrival) {
  if (arrival.finish != FinishReason::kNone) return Emit(arrival.id, arrival.finish, arrival.error);
  if (arrival.request == nullptr) return scheduler_.Abort(arrival.id);
  profiled_.OnArrival(*arrival.request);
  const Status status = scheduler_.Submit(std::move(*arrival.request));
  if (status.ok()) {
    if (arrival.constraint != nullptr) table_->Add(arrival.id, std::move(arrival.constraint));
    return;
  }
  BT_LOG_LIMITED(Error, "A request passed the check but not the scheduler: {}", status.message());
  Emit(arrival.id, FinishReason::kError, status);
}

// The final event of a request that the scheduler does not know.
void StepLoop::Emit(RequestId id, FinishReason finish, const Status& error) {
  std::vector<TokenEvent> events(1);
  events[0].request = id;
  events[0].finish = finish;
  if (!error.ok()) events[0].Fail(error);
  profiled_.OnEvents(events);
  sink_(std::move(events));
}

Status StepLoop::Step() {
  stuck_ = false;
  const Seconds start = clock_.Now();
  StepPlan plan;
  bool admits = true;
  if (scheduler_.plans_in_flight() < executor_.plans_in_flight()) {
    const SchedulerStats now = scheduler_.stats();
    admits = executor_.Admits(now.running >= max_num_seqs_, now.waiting > 0);
    {
      ProfileSpan span("schedule");
      // In a pipeline each plan has its share.
      const int32_t stages = executor_.stages();
      const int32_t sequences = (now.running + stages - 1) / stages;
      plan = scheduler_.Plan(budget_ ? budget_->costs() : StepCosts(), draft_count_.Ask(sequences),
                             admits);
      if (plan.empty()) span.Forget();
    }
    DeliverStarted();
  }
  if (!plan.empty()) {
    const StepWork work = WorkOf(plan);
    started_.push_back({.work = work,
                        .at = clock_.Now(),
                        .tokens = plan.num_tokens(),
                        .waited = waited_,
                        .drafts = draft_count_.Started(plan, work)});
    profiled_.OnPlan(plan);
    BT_RETURN_IF_ERROR(executor_.Start(std::move(plan)));
    // There may be room for another.
    if (scheduler_.plans_in_flight() < executor_.plans_in_flight()) return {};
  }
  stuck_ = scheduler_.plans_in_flight() == 0;
  if (stuck_) {
    executor_.Rest();
    stuck_ = admits;  // who may not admit requests asks again
    return executor_.status();
  }

  if (budget_) Expect();
  Result<StepResult> result = [this] {
    const ProfileSpan span("execute");
    return executor_.Finish();
  }();
  if (!result.ok()) return result.status();
  profiled_.OnResult(result.value().step);
  const Started ended = Measure(result.value());
  {
    const ProfileSpan span("commit");
    scheduler_.Commit(result.value());
  }

  const std::lock_guard lock(mutex_);
  stats_.step = result.value().step;
  stats_.step_tokens_last = static_cast<uint64_t>(ended.tokens);
  stats_.drafts_wanted = ended.drafts.asked;
  stats_.step_seconds_last = clock_.Now() - start;
  stats_.step_seconds += stats_.step_seconds_last;
  return {};
}

// The oldest step may wait for others that came before it, so all in flight count.
void StepLoop::Expect() {
  Seconds expected = 0;
  for (const Started& step : started_) expected += budget_->Expected(step.work);
  turn_expected_ = expected;
}

// For prompts the time counts that a step took; for drafts all between two steps, which is less
// where the next one could be planned ahead.
StepLoop::Started StepLoop::Measure(const StepResult& result) {
  const Started step = started_.front();
  started_.pop_front();
  const Seconds now = clock_.Now();
  const Seconds before = std::exchange(finished_at_, now);
  if (budget_) budget_->Observe(step.work, now - std::max(step.at, before));
  if (!step.waited) draft_count_.Observe(step.drafts, result, now - before);
  return step;
}

// Before the step is computed, which may take long.
void StepLoop::DeliverStarted() {
  std::vector<TokenEvent> events;
  for (const RequestId id : scheduler_.TakeStarted()) {
    TokenEvent& event = events.emplace_back();
    event.request = id;
    event.started = true;
    profiled_.OnStarted(id);
  }
  if (events.empty()) return;
  {
    // Whoever hears that a request has left the queue finds its place free.
    const std::lock_guard lock(mutex_);
    queued_requests_ = scheduler_.queued_requests();
    queued_tokens_ = scheduler_.queued_tokens();
    const SchedulerStats now = scheduler_.stats();
    stats_.running = now.running;
    stats_.waiting = now.waiting;
  }
  sink_(std::move(events));
}

void StepLoop::Deliver() {
  ProfileSpan span("deliver");
  std::vector<TokenEvent> events = scheduler_.TakeEvents();
  if (events.empty()) span.Forget();
  profiled_.OnEvents(events);
  for (const TokenEvent& event : events) {
    if (table_ != nullptr && event.finish != FinishReason::kNone) table_->Remove(event.request);
  }
  if (!events.empty()) sink_(std::move(events));

  const SchedulerStats now = scheduler_.stats();
  const std::lock_guard lock(mutex_);
  stats_.running = now.running;
  stats_.waiting = now.waiting;
  stats_.kv_usage = 1 - static_cast<double>(now.free_blocks) / scheduler_.pool().num_blocks();
  stats_.prefix_queries = now.prefix_queries;
  stats_.prefix_hits = now.prefix_hits;
  stats_.preemptions = now.preemptions;
  stats_.prompt_tokens_computed = now.prompt_tokens_computed;
  stats_.generation_tokens = now.generation_tokens;
  stats_.drafts = now.drafts;
}

// The final event of every request that has none, also of those that arrived last. Only then is the
// loop seen to have ended: who sees it may end the process, and nobody would hear these events.
void StepLoop::EndAll(const Status& error) {
  std::vector<Arrival> late;
  std::unordered_map<RequestId, int64_t> preparing;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;  // nothing more comes
    late.swap(inbox_);
    preparing.swap(preparing_);
    inbox_requests_ = inbox_tokens_ = preparing_tokens_ = 0;
  }
  std::vector<TokenEvent> events = scheduler_.TakeEvents();
  const auto end = [&](RequestId id) {
    TokenEvent& event = events.emplace_back();
    event.request = id;
    event.finish = FinishReason::kAbort;
    if (!error.ok()) event.Fail(error);
  };
  scheduler_.ForEachSequence([&](const Sequence& sequence) {
    if (sequence.state != SequenceState::kEnding) end(sequence.request.id);
  });
  for (const Arrival& arrival : late) {
    if (arrival.request != nullptr || arrival.finish != FinishReason::kNone) end(arrival.id);
  }
  for (const auto& [id, tokens] : preparing) end(id);
  if (!events.empty()) sink_(std::move(events));
  const std::lock_guard lock(mutex_);
  stats_.running = stats_.waiting = 0;
  stats_.kv_usage = 0;
  alive_ = false;
}

}  // namespace baltoro
