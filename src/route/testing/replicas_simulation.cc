#include "route/testing/replicas_simulation.h"

#include <algorithm>
#include <utility>

#include "route/shared_engine.h"

namespace baltoro::test {

namespace {

constexpr Milliseconds kTick = 10;
constexpr int kQuietTicksMax = 6000;  // without progress, while nothing is wrong
constexpr int32_t kDepthMax = 2;      // of calls beside calls

}  // namespace

// A replica as the group has it.
class ReplicasSimulation::Watched final : public Engine {
 public:
  Watched(ReplicasSimulation& simulation, int32_t replica, std::unique_ptr<Engine> engine)
      : simulation_(simulation), replica_(replica), engine_(std::move(engine)) {}

  Status Submit(Request request) override {
    const Request given = request;
    simulation_.OnAsked(replica_, given);
    const Status status = engine_->Submit(std::move(request));
    simulation_.OnGiven(replica_, given, status);
    return status;
  }
  void Abort(RequestId id) override { engine_->Abort(id); }
  EngineStats stats() const override { return engine_->stats(); }
  const EngineInfo& info() const override { return engine_->info(); }
  EngineHealth health() const override { return engine_->health(); }

 private:
  ReplicasSimulation& simulation_;
  const int32_t replica_;
  const std::unique_ptr<Engine> engine_;
};

ReplicasSimulation::ReplicasSimulation(int seed, int ticks) : ticks_(ticks) {
  world_.random.seed(static_cast<uint64_t>(seed));
  SchedulerConfig& config = settings_.scheduler;
  config.num_blocks = world_.Between(8, world_.Chance(2) ? 16 : 60);
  config.max_num_seqs = world_.Between(1, 6);
  config.max_num_batched_tokens = world_.Between(40, 300);
  config.max_model_len = config.num_blocks * kBlockTokens;
  config.max_queued_requests = world_.Between(1, world_.Chance(3) ? 3 : 20);
  const int room = config.num_blocks * kBlockTokens;
  prompt_max_ = world_.Between(1, room / 2);
  output_max_ = world_.Between(1, std::min(room / 4, 60));
  shares_ = world_.Chance(3);
  replicas_ = shares_ ? world_.Between(2, 4) : world_.Between(1, 4);
  settings_.replicas = shares_ ? replicas_ : 1;
  settings_.balance = shares_ && world_.Chance(2);
  settings_.step = world_.Between(1, 20) * kTick;
  settings_.health.lost = 6;
  // Each kind of trouble is on in about half of the seeds.
  dies_ = world_.Chance(2);
  stands_still_ = world_.Chance(2);
  slows_ = world_.Chance(2);
  pins_ = world_.Chance(3);
  poison_ = dies_ && world_.Chance(3);
  settings_.restart_max = world_.Chance(3) ? 5 * kTick : world_.Between(50, 500) * kTick;
  arrival_one_in_ = world_.Between(1, world_.Chance(4) ? 10 : 120);
  abort_one_in_ = world_.Chance(2) ? 1 << 30 : world_.Between(5, 100);
  trouble_one_in_ = world_.Between(30, 400);
  beside_one_in_ = world_.Chance(2) ? 1 << 30 : world_.Between(3, 30);
  for (int i = 0; i < 6; ++i) {
    auto& prefix = prefixes_.emplace_back(world_.Between(1, prompt_max_));
    for (TokenId& token : prefix) token = world_.Between(0, kVocab - 1);
  }
  MakeEngines();
  world_.beside = [this] { Beside(); };
}

// What is still open ends now.
ReplicasSimulation::~ReplicasSimulation() {
  world_.beside = [] {};
  gone_ = true;
  group_.reset();
}

void ReplicasSimulation::MakeEngines() {
  for (int32_t i = 0; i < (shares_ ? 1 : replicas_); ++i) {
    made_.push_back(std::make_unique<SimulatedEngine>(settings_, world_));
    engines_.push_back(made_.back().get());
  }
  served_.assign(static_cast<size_t>(replicas_), true);
  blocks_given_.assign(static_cast<size_t>(replicas_), 0);
  std::shared_ptr<SharedEngine> shared;
  if (shares_) {
    shared = SharedEngine::Start(replicas_, [&](EventSink sink) -> Result<std::unique_ptr<Engine>> {
               made_[0]->SetSink(std::move(sink));
               return std::unique_ptr<Engine>(std::move(made_[0]));
             }).value();
  }
  const auto make = [&](int32_t replica, EventSink sink) -> Result<std::unique_ptr<Engine>> {
    EventSink watched = [this, replica, sink = std::move(sink)](std::vector<TokenEvent> events) {
      for (const TokenEvent& event : events) {
        if (event.finish == FinishReason::kLost) blocks_given_[static_cast<size_t>(replica)] = 0;
      }
      sink(std::move(events));
    };
    std::unique_ptr<Engine> engine;
    if (shares_) {
      engine = SharedEngine::Member(shared, replica, std::move(watched));
    } else {
      made_[static_cast<size_t>(replica)]->SetSink(std::move(watched));
      engine = std::move(made_[static_cast<size_t>(replica)]);
    }
    return std::unique_ptr<Engine>(std::make_unique<Watched>(*this, replica, std::move(engine)));
  };
  group_ = ReplicaGroup::StartInTurn(replicas_, make, [this](std::vector<TokenEvent> events) {
             OnEvents(std::move(events));
           }).value();
}

ReplicasReport ReplicasSimulation::Run() {
  for (int i = 0; i < ticks_ && world_.violation.empty(); ++i) Tick(true);
  const auto add = [&] {
    for (const SimulatedEngine* engine : engines_) {
      report_.deaths += engine->counts().deaths;
      report_.given_up += engine->counts().given_up;
      report_.steps += engine->counts().steps;
      report_.idle_members += engine->counts().idle_members;
      report_.not_admitted += engine->counts().not_admitted;
    }
  };
  world_.beside = [] {};
  if (world_.violation.empty() && world_.Chance(4)) {
    add();
    report_.stopped = static_cast<int64_t>(open_.size());
    gone_ = true;
    group_.reset();
    if (!open_.empty()) world_.Violate("the end of the door left requests without an end");
  } else if (world_.violation.empty()) {
    CheckEnd();
    add();
  }
  report_.violation = world_.violation;
  return report_;
}

// Nothing is wrong any more, and nothing new comes: all that is open must end.
void ReplicasSimulation::CheckEnd() {
  for (SimulatedEngine* engine : engines_) engine->Heal();
  int64_t seen = report_.tokens;
  size_t left = open_.size();
  for (int quiet = 0; world_.violation.empty() && !open_.empty(); ++quiet) {
    Tick(false);
    if (report_.tokens != seen || open_.size() != left) quiet = 0;
    seen = report_.tokens;
    left = open_.size();
    if (quiet > kQuietTicksMax) world_.Violate("no progress, though requests are open");
  }
  const auto steps = [&] {
    int64_t sum = 0;
    for (const SimulatedEngine* engine : engines_) sum += engine->counts().steps;
    return sum;
  };
  for (int i = 0; i < 50; ++i) Tick(false);  // what was aborted is computed to the step's end
  const int64_t before = steps();
  for (int i = 0; i < 100; ++i) Tick(false);
  if (steps() != before) world_.Violate("steps are computed though nobody has work");
}

void ReplicasSimulation::Tick(bool faults) {
  world_.now += kTick;
  for (int32_t i = 0; i < replicas_; ++i) served_[static_cast<size_t>(i)] = Serves(i);
  disturbed_ = 0;
  if (faults && world_.Chance(arrival_one_in_)) SubmitOne();
  if (faults && world_.Chance(abort_one_in_)) AbortOne();
  if (faults && world_.Chance(trouble_one_in_)) Trouble();
  for (SimulatedEngine* engine : engines_) engine->Tick();
  if (world_.violation.empty()) CheckCounts();
}

Request ReplicasSimulation::RandomRequest() {
  Request request;
  request.id = RequestId{next_id_++};
  const int salt = world_.Between(0, 1);
  request.cache_salt = salt == 0 ? "" : "salt";
  request.sampling.seed = static_cast<uint64_t>(salt);
  request.prompt = prefixes_[static_cast<size_t>(world_.Between(0, 5))];
  const int more = world_.Chance(2) ? world_.Between(0, 40) : 0;
  for (int i = 0; i < more; ++i) request.prompt.push_back(world_.Between(0, kVocab - 1));
  request.stop.max_tokens = world_.Between(1, output_max_);
  request.stop.ignore_eos = true;
  if (pins_ && world_.Chance(3)) request.replica = world_.Between(0, replicas_ - 1);
  return request;
}

void ReplicasSimulation::SubmitOne() {
  const Request request = RandomRequest();
  const auto id = static_cast<uint64_t>(request.id);
  Client client;
  client.request = request;
  client.chain = ChainStart(request.sampling.seed);
  for (const TokenId token : request.prompt) client.chain = ChainNext(client.chain, token);
  clients_.emplace(id, std::move(client));
  open_.push_back(id);
  ++report_.requests;
  const uint64_t disturbed = disturbed_;
  std::vector<bool> serves;
  for (int32_t i = 0; i < replicas_; ++i) serves.push_back(Serves(i));
  const Status status = group_->Submit(request);
  if (disturbed == disturbed_) {
    for (size_t i = 0; i < serves.size(); ++i) {
      if (!serves[i]) blocks_given_[i] = 0;
    }
  }
  if (status.ok()) return;
  std::erase(open_, id);
  Client& refused = clients_.at(id);
  if (refused.ended) world_.Violate("a request is refused that has ended");
  refused.ended = true;
  CheckRefusal(request, status, disturbed);
}

void ReplicasSimulation::AbortOne() {
  if (open_.empty()) return;
  // The newest is often on its way to a replica.
  const uint64_t id = world_.Chance(3) ? open_.back() : open_[world_.random() % open_.size()];
  Client& client = clients_.at(id);
  if (client.aborted_at < 0) client.aborted_at = world_.now;
  ++report_.aborts;
  group_->Abort(RequestId{id});
}

void ReplicasSimulation::Trouble() {
  SimulatedEngine& engine = *engines_[world_.random() % engines_.size()];
  const int kind = world_.Between(0, 2);
  if (kind == 0 && dies_) engine.Die();
  if (kind == 1 && stands_still_) engine.StandStill(world_.Between(50, 1500) * kTick);
  if (kind == 2 && slows_) engine.BeSlow(world_.Between(5, 60), world_.Between(100, 1000) * kTick);
}

// As another thread would, while the group is within a call into an engine or to the clients.
void ReplicasSimulation::Beside() {
  if (depth_ >= kDepthMax || !world_.violation.empty() || !world_.Chance(beside_one_in_)) return;
  ++depth_;
  ++disturbed_;
  ++report_.beside;
  SimulatedEngine& engine = *engines_[world_.random() % engines_.size()];
  switch (world_.Between(0, 3)) {
    case 0:
      AbortOne();
      break;
    case 1:
      SubmitOne();
      break;
    case 2:
      if (!dies_ || engine.busy()) break;
      engine.Die();
      engine.NoticeEnd();
      break;
    default:
      engine.Tick();
      break;
  }
  --depth_;
}

bool ReplicasSimulation::Serves(int32_t replica) const {
  return engines_[shares_ ? 0 : static_cast<size_t>(replica)]->healthy();
}

bool ReplicasSimulation::HasRoom(int32_t replica, const Request& request) const {
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  return shares_ ? engines_[0]->has_room(replica, tokens)
                 : engines_[static_cast<size_t>(replica)]->has_room(0, tokens);
}

void ReplicasSimulation::Trace(uint64_t value) {
  report_.trace = (report_.trace ^ value) * 0x100000001b3 + 0x9e3779b97f4a7c15;
}

}  // namespace baltoro::test
