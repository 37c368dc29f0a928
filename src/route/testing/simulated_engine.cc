#include "route/testing/simulated_engine.h"

#include <algorithm>
#include <utility>

namespace baltoro::test {

namespace {

constexpr Milliseconds kTick = 10;
constexpr Milliseconds kBeat = 100, kLook = 200;
constexpr int kLostLooks = 10;  // in a row

}  // namespace

SimulatedEngine::SimulatedEngine(const Settings& settings, SimulatedWorld& world)
    : settings_(settings), world_(world) {
  info_.replicas = settings.replicas;
  info_.num_blocks = settings.scheduler.num_blocks;
  info_.max_model_len = settings.scheduler.max_model_len;
  info_.kv_cache_tokens = int64_t{settings.scheduler.num_blocks} * kBlockTokens;
  info_.longest_step_seconds = static_cast<double>(settings.step) / 1000;
  queue_requests_.resize(static_cast<size_t>(settings.replicas));
  queue_tokens_.resize(static_cast<size_t>(settings.replicas));
  Start();
}

SimulatedEngine::~SimulatedEngine() {
  ready_ = false;
  FailOpenRequests("the server is stopping");
}

// The process begins anew, and is ready.
void SimulatedEngine::Start() {
  process_ = Process::kRuns;
  ++births_;
  dead_since_ = -1;
  still_until_ = slow_until_ = 0;
  members_.clear();
  computed_.clear();
  members_.resize(static_cast<size_t>(settings_.replicas));
  for (Member& member : members_) {
    member.scheduler = std::make_unique<Scheduler>(settings_.scheduler);
    member.executor = std::make_unique<MockExecutor>(settings_.scheduler.num_blocks,
                                                     settings_.scheduler.max_num_seqs, FixedForms{},
                                                     world_.random());
  }
  steps_ = std::make_unique<GroupSteps>(settings_.replicas);
  step_ = 0;
  turns_ = {};
  stats_ = {};
  heard_at_ = world_.now;
  next_beat_ = world_.now + kBeat;
  lost_looks_ = 0;
  ready_ = true;
}

Status SimulatedEngine::Submit(Request request) {
  world_.beside();
  if (!ready_) return Status(Code::kUnavailable, "it is being started again");
  const int32_t replica = settings_.replicas > 1 ? request.replica : 0;
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  if (!has_room(replica, tokens)) return Status(Code::kResourceExhausted, "the queue is full");
  const RequestId id = request.id;
  if (!open_.emplace(id, OpenRequest{.replica = replica, .tokens = tokens}).second) {
    world_.Violate("a replica is given a request that it has");
    return Status(Code::kInternal, "the request id is in use");
  }
  const auto at = static_cast<size_t>(replica);
  ++queue_requests_[at];
  queue_tokens_[at] += tokens;
  // What is sent to a process that is dead is lost.
  if (process_ == Process::kRuns) {
    At(replica).inbox.push_back(
        {.at = world_.now + world_.Between(0, 1) * kTick, .id = id, .request = std::move(request)});
  }
  world_.beside();
  return {};
}

void SimulatedEngine::Abort(RequestId id) {
  const auto found = open_.find(id);
  if (!ready_ || found == open_.end() || process_ != Process::kRuns) return;
  Member& member = At(found->second.replica);
  // Behind what has been sent before.
  const Milliseconds at = member.inbox.empty() ? world_.now : member.inbox.back().at;
  member.inbox.push_back({.at = at, .id = id, .request = std::nullopt});
}

EngineStats SimulatedEngine::stats() const {
  return stats_;
}

EngineHealth SimulatedEngine::health() const {
  EngineHealth health;
  health.trouble = ready_ ? Judge().trouble : EngineTrouble::kEnded;
  return health;
}

EngineVerdict SimulatedEngine::Judge() const {
  return JudgeEngine(stats_, static_cast<double>(world_.now - heard_at_) / 1000,
                     info_.longest_step_seconds, settings_.health);
}

void SimulatedEngine::Die() {
  if (process_ != Process::kRuns) return;
  ++counts_.deaths;
  process_ = Process::kDead;
  dead_since_ = world_.now;
  end_at_ = world_.now + world_.Between(0, 8) * kTick;
  // Some of what it has written arrives, the rest never left it.
  const auto arrives = static_cast<size_t>(world_.Between(0, static_cast<int>(sent_.size())));
  sent_.resize(arrives);
  members_.clear();
  computed_.clear();
}

void SimulatedEngine::StandStill(Milliseconds how_long) {
  still_until_ = world_.now + how_long;
}

void SimulatedEngine::BeSlow(int factor, Milliseconds how_long) {
  slow_factor_ = factor;
  slow_until_ = world_.now + how_long;
}

void SimulatedEngine::Heal() {
  still_until_ = std::min(still_until_, world_.now);
  slow_until_ = std::min(slow_until_, world_.now);
}

void SimulatedEngine::NoticeEnd() {
  if (process_ != Process::kDead) return;
  // What arrived before the end is read first.
  for (Sent& sent : sent_) sent.at = world_.now;
  Deliver();
  ready_ = false;
  process_ = Process::kStarts;
  starts_at_ =
      world_.now + world_.Between(1, static_cast<int>(settings_.restart_max / kTick)) * kTick;
  FailOpenRequests(kEngineLost);
}

void SimulatedEngine::FailOpenRequests(const std::string& why) {
  std::vector<RequestId> ids;
  for (const auto& [id, open] : open_) ids.push_back(id);
  std::ranges::sort(ids);  // so that a seed has one life
  std::vector<TokenEvent> events;
  for (const RequestId id : ids) {
    TokenEvent& event = events.emplace_back();
    event.request = id;
    event.replica = open_.at(id).replica;
    event.Fail(Status(Code::kUnavailable, why));
  }
  open_.clear();
  std::ranges::fill(queue_requests_, 0);
  std::ranges::fill(queue_tokens_, 0);
  if (!events.empty()) sink_(std::move(events));
}

int32_t SimulatedEngine::open(int32_t replica) const {
  return static_cast<int32_t>(
      std::ranges::count_if(open_, [&](const auto& one) { return one.second.replica == replica; }));
}

bool SimulatedEngine::has_room(int32_t replica, int64_t tokens) const {
  const auto at = static_cast<size_t>(replica);
  return queue_requests_[at] < settings_.scheduler.max_queued_requests &&
         queue_tokens_[at] + tokens <= 8 * info_.kv_cache_tokens;
}

void SimulatedEngine::Tick() {
  if (ticking_) return;  // beside itself
  ticking_ = true;
  if (moves()) {
    std::vector<int32_t> order;
    for (int32_t i = 0; i < settings_.replicas; ++i) order.push_back(i);
    std::ranges::shuffle(order, world_.random);
    for (const int32_t replica : order) RunMember(replica);
    RunSteps();
    Beat();
  }
  Deliver();
  if (process_ == Process::kDead && world_.now >= end_at_) NoticeEnd();
  if (process_ == Process::kStarts && world_.now >= starts_at_) Start();
  if (world_.now % kLook == 0) LookWhetherLost();
  ticking_ = false;
}

// A process that is not waited for any longer is ended by the door.
void SimulatedEngine::LookWhetherLost() {
  lost_looks_ = ready_ && Judge().lost ? lost_looks_ + 1 : 0;
  if (lost_looks_ < kLostLooks) return;
  ++counts_.given_up;
  ready_ = false;
  Die();
  NoticeEnd();
}

void SimulatedEngine::RunMember(int32_t replica) {
  Member& member = At(replica);
  if (member.phase == Phase::kComputes) {
    if (!steps_->HasResult(replica)) return;
    const StepResult result = steps_->TakeResult(replica);
    if (result.step == 0) return world_.Violate("a result that nobody has computed");
    member.scheduler->Commit(result);
    Send(replica, member.scheduler->TakeEvents());
    member.phase = Phase::kTurns;
    member.turn_at = world_.now + (world_.Chance(3) ? world_.Between(1, 6) * kTick : 0);
  }
  if (member.phase == Phase::kTurns && world_.now >= member.turn_at) Turn(replica);
  if (member.phase == Phase::kAsks) {
    const std::optional<bool> admits = steps_->Admits(replica);
    if (admits.has_value()) PlanStep(replica, *admits);
  }
}

// As StepLoop's: what arrived, then a plan.
void SimulatedEngine::Turn(int32_t replica) {
  Member& member = At(replica);
  Scheduler& scheduler = *member.scheduler;
  while (!member.inbox.empty() && member.inbox.front().at <= world_.now) {
    Arrival arrival = std::move(member.inbox.front());
    member.inbox.pop_front();
    if (!arrival.request.has_value()) {
      scheduler.Abort(arrival.id);
    } else if (const Status status = scheduler.Submit(*std::move(arrival.request)); !status.ok()) {
      world_.Violate("the door sent what the engine's queue does not take: " + status.message());
    }
  }
  Send(replica, scheduler.TakeEvents());                              // of who is aborted
  if (scheduler.idle() && !member.thinks && !member.refused) return;  // it sleeps
  if (!settings_.balance) return PlanStep(replica, true);
  const SchedulerStats now = scheduler.stats();
  member.full = now.running >= settings_.scheduler.max_num_seqs;
  steps_->Say(replica, member.full, now.waiting > 0);
  member.settled = true;
  if (now.waiting == 0) return PlanStep(replica, true);
  member.phase = Phase::kAsks;
}

void SimulatedEngine::PlanStep(int32_t replica, bool admits) {
  Member& member = At(replica);
  member.refused = !admits;
  member.refused_in = step_;
  if (!admits) ++counts_.not_admitted;
  StepPlan plan = member.scheduler->Plan({}, 0, admits);
  std::vector<TokenEvent> started;
  for (const RequestId id : member.scheduler->TakeStarted()) {
    TokenEvent& event = started.emplace_back();
    event.request = id;
    event.started = true;
  }
  // Who comes back after a preemption is no newcomer.
  const bool newcomers = !started.empty();
  Send(replica, std::move(started));
  member.thinks = false;
  member.phase = Phase::kTurns;
  if (plan.empty()) {
    member.full = false;
    steps_->Rest(replica);
    return;
  }
  if (newcomers) CheckAdmission(replica);
  member.phase = Phase::kComputes;
  member.plan = plan.sequences;
  steps_->Plan(replica, std::move(plan));
}

void SimulatedEngine::CheckAdmission(int32_t replica) {
  if (!settings_.balance) return;
  for (int32_t i = 0; i < settings_.replicas; ++i) {
    const Member& other = At(i);
    if (other.full) world_.Violate("requests are admitted though a replica is full");
    if (i != replica && !other.settled)
      world_.Violate("requests are admitted before it is known whether all are full");
  }
}

// As GroupTeam's thread and the ranks.
void SimulatedEngine::RunSteps() {
  while (!computed_.empty() && computed_.front().at <= world_.now) {
    Computed computed = std::move(computed_.front());
    computed_.erase(computed_.begin());
    Member& member = At(computed.replica);
    member.untold.push_back(computed.result.step);
    member.thinks = true;
    steps_->Deliver(computed.replica, std::move(computed.result));
    if (computed_.empty()) {
      turns_.Add(static_cast<double>(world_.now - step_began_) / 1000);
    }
  }
  // Another node tells of what it was not asked.
  if (world_.Chance(50)) {
    const int32_t replica = world_.Between(0, settings_.replicas - 1);
    if (At(replica).phase != Phase::kComputes) steps_->Deliver(replica, {});
  }
  if (!computed_.empty() || !steps_->CanBegin()) return;
  const PlanMessages messages = steps_->Begin();
  CheckBegin(messages);
  if (!world_.violation.empty()) return;
  ++counts_.steps;
  stats_.step = ++step_;
  step_began_ = world_.now;
  Milliseconds takes = settings_.step * world_.Between(5, 15) / 10;
  if (slow()) takes *= slow_factor_;
  for (int32_t i = 0; i < settings_.replicas; ++i) {
    const StepPlan& plan = messages[static_cast<size_t>(i)]->plan;
    if (plan.empty()) {
      ++counts_.idle_members;
      continue;
    }
    Member& member = At(i);
    member.plan.clear();
    member.settled = false;
    // Those whose tokens are sampled on other nodes hear of it a little later.
    const Milliseconds later = world_.Chance(4) ? world_.Between(0, 3) * kTick : 0;
    computed_.push_back(
        {.at = world_.now + takes + later, .replica = i, .result = member.executor->Run(plan)});
    if (!member.executor->violation().empty()) world_.Violate(member.executor->violation());
  }
  std::ranges::stable_sort(computed_, {}, &Computed::at);
}

void SimulatedEngine::CheckBegin(const PlanMessages& messages) {
  int64_t rows = 0;
  for (int32_t i = 0; i < settings_.replicas; ++i) {
    Member& member = At(i);
    const PlanMessage& message = *messages[static_cast<size_t>(i)];
    if (member.thinks) world_.Violate("a step begins while a replica thinks");
    if (member.phase == Phase::kAsks && (!member.refused || step_ > member.refused_in)) {
      world_.Violate("a step begins without a replica that wants to admit requests");
    }
    if (message.plan.sequences != member.plan) {
      world_.Violate("a step has another plan than the replica's");
    }
    if (message.plan.group_rows.size() != static_cast<size_t>(settings_.replicas) ||
        message.plan.group_rows[static_cast<size_t>(i)] != message.plan.num_tokens()) {
      world_.Violate("a step's rows are counted wrongly");
    }
    rows += message.plan.num_tokens();
    if (message.finished.size() != member.untold.size()) {
      world_.Violate("ranks hear of a result twice, or never");
    }
    member.untold.clear();
  }
  if (rows == 0) world_.Violate("a step is computed in which nobody has work");
}

void SimulatedEngine::Send(int32_t replica, std::vector<TokenEvent> events) {
  if (events.empty()) return;
  for (TokenEvent& event : events) event.replica = replica;
  const Milliseconds before = sent_.empty() ? 0 : sent_.back().at;
  sent_.push_back({.at = std::max(before, world_.now + world_.Between(0, 1) * kTick),
                   .events = std::move(events)});
}

// At the door, as RemoteEngine::OnStep.
void SimulatedEngine::Deliver() {
  while (!sent_.empty() && sent_.front().at <= world_.now) {
    std::vector<TokenEvent> events = std::move(sent_.front().events);
    sent_.pop_front();
    heard_at_ = world_.now;
    std::erase_if(events, [&](TokenEvent& event) {
      const auto open = open_.find(event.request);
      if (open == open_.end()) return true;
      if (event.started && !std::exchange(open->second.started, true)) LeaveQueue(open->second);
      if (event.finish != FinishReason::kNone) {
        if (!open->second.started) LeaveQueue(open->second);
        open_.erase(open);
      }
      return false;
    });
    if (!events.empty()) sink_(std::move(events));
  }
}

void SimulatedEngine::LeaveQueue(const OpenRequest& open) {
  const auto at = static_cast<size_t>(open.replica);
  --queue_requests_[at];
  queue_tokens_[at] -= open.tokens;
}

void SimulatedEngine::Beat() {
  if (world_.now < next_beat_) return;
  next_beat_ = world_.now + kBeat;
  heard_at_ = world_.now;
  stats_.turn_seconds =
      computed_.empty() ? 0 : static_cast<double>(world_.now - step_began_) / 1000;
  stats_.long_turn_seconds = turns_.longest();
}

}  // namespace baltoro::test
