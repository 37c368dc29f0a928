#include "route/node_replica.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/log.h"
#include "engine/engine_process.h"

namespace baltoro {
namespace {

constexpr Seconds kTry = 5;      // one visit, with all that is read in it
constexpr Seconds kPause = 0.2;  // after a visit in vain
constexpr Seconds kFirstTell = 2, kTell = 10;
constexpr std::chrono::milliseconds kBeat(100);
constexpr Seconds kEndOfDoor = 5;  // in which the door ends a connection whose engine is away

void Sleep(Seconds seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

// Whether the process is there, however slow it may be.
bool Lives(EngineTrouble trouble) {
  return trouble == EngineTrouble::kNone || trouble == EngineTrouble::kStalled ||
         trouble == EngineTrouble::kSilent;
}

}  // namespace

// The engine as the door's connection sees it: what it has open is known here.
class NodeReplica::Tracked final : public Engine {
 public:
  explicit Tracked(NodeReplica& owner, Engine& engine) : owner_(owner), engine_(engine) {}

  Status Submit(Request request) override {
    const RequestId id = request.id;
    {
      const std::lock_guard lock(owner_.mutex_);
      if (!owner_.open_.insert(id).second) {
        return Status(Code::kInternal, "the request id is in use");
      }
    }
    Status status = engine_.Submit(std::move(request));
    if (!status.ok()) {
      const std::lock_guard lock(owner_.mutex_);
      owner_.open_.erase(id);
    }
    return status;
  }
  void Abort(RequestId id) override { engine_.Abort(id); }
  EngineStats stats() const override { return engine_.stats(); }
  const EngineInfo& info() const override { return engine_.info(); }
  EngineHealth health() const override { return engine_.health(); }
  void Profile(const ProfileAsk& ask, const ProfileDone& done) override {
    std::shared_ptr<EngineConnection> connection;  // which `done` speaks to
    {
      const std::lock_guard lock(owner_.mutex_);
      connection = owner_.connection_;
    }
    engine_.Profile(
        ask, [connection, done](const Status& status, const Json& said) { done(status, said); });
  }
  void Leave() override { engine_.Leave(); }

 private:
  NodeReplica& owner_;
  Engine& engine_;
};

NodeReplica::NodeReplica(const NodeReplicaOptions& options)
    : options_(options), name_(fmt::format("Replica {}", options.replica)) {}

NodeReplica::~NodeReplica() {
  if (loader_.joinable()) loader_.join();
}

Engine* NodeReplica::engine() const {
  const std::lock_guard lock(mutex_);
  return engine_.get();
}

// Why there is no engine and will be none.
Status NodeReplica::EngineEnd() const {
  Engine* const engine = this->engine();
  if (engine != nullptr) return engine->end();
  const std::lock_guard lock(mutex_);
  return load_failure_;
}

Status NodeReplica::Run() {
  for (bool first = true;; first = false) {
    BT_ASSIGN_OR_RETURN(const int fd, Reach(first ? options_.first_patience : options_.patience));
    BT_LOG(Info, "{}: with the head at {}", name_, options_.meeting.head.Text());
    if (first) loader_ = std::thread([this] { Load(); });
    const Status said = Attend(fd);
    if (IsServerStopped(said)) return {};
    if (said.code() == Code::kInvalidArgument) {
      return InvalidArgument(fmt::format("{}: {}", name_, said.message()));
    }
    BT_RETURN_IF_ERROR(EngineEnd());
    BT_LOG(Warning, "{}: the head at {} is gone; it is looked for again", name_,
           options_.meeting.head.Text());
  }
}

Result<int> NodeReplica::Reach(Seconds patience) {
  const MonotonicClock clock;
  const Seconds begun = clock.Now();
  Seconds tell_at = begun + kFirstTell, taken_since = 0;
  const std::string head = options_.meeting.head.Text();
  for (;;) {
    BT_RETURN_IF_ERROR(EngineEnd());
    Result<int> visit = VisitGate(options_.meeting, options_.replica, clock.Now() + kTry);
    const Code code = visit.status().code();
    if (visit.ok()) return visit;
    const Seconds now = clock.Now();
    const bool taken = code == Code::kResourceExhausted;
    if (!taken) taken_since = 0;
    if (taken && taken_since == 0) taken_since = now;
    if (code == Code::kInvalidArgument || (taken && now - taken_since >= options_.taken_patience)) {
      return InvalidArgument(
          fmt::format("{}: the head at {}: {}", name_, head, visit.status().message()));
    }
    if (patience > 0 && now - begun >= patience) {
      return Status(Code::kNotFound,
                    fmt::format("{}: the head at {} did not come within {:.0f} s: {}", name_, head,
                                patience, visit.status().message()));
    }
    if (now >= tell_at) {
      tell_at = now + kTell;
      BT_LOG(Info, "{}: waiting for the head at {}: {}", name_, head, visit.status().message());
    }
    Sleep(kPause);
  }
}

void NodeReplica::Load() {
  auto made = options_.maker([this](const std::vector<TokenEvent>& events) { OnEvents(events); });
  const std::lock_guard lock(mutex_);
  if (made.ok()) {
    engine_ = std::move(made).value();
  } else {
    load_failure_ = made.status();
  }
}

// One connection, from its start to its end.
Status NodeReplica::Attend(int fd) {
  const auto connection = std::make_shared<EngineConnection>(fd);
  std::unique_ptr<Tracked> tracked;  // once it is ready; requests come to it until Serve returns
  {
    const std::lock_guard lock(mutex_);
    connection_ = connection;
  }
  std::jthread beats([&](const std::stop_token& stop) { Beats(*connection, tracked, stop); });
  Status said = connection->Serve();
  beats.request_stop();
  beats.join();
  {
    const std::lock_guard lock(mutex_);
    connection_ = nullptr;
  }
  DropRequests();
  if (connection->stopped()) return Status(Code::kUnavailable, kServerStopped);
  return said;
}

// Ten times a second: the engine's statistics, and whether requests may come.
void NodeReplica::Beats(EngineConnection& connection,
                        std::unique_ptr<Tracked>& tracked,
                        const std::stop_token& stop) {
  for (; !stop.stop_requested(); std::this_thread::sleep_for(kBeat)) {
    Engine* const engine = this->engine();
    Status end = EngineEnd();
    const EngineTrouble trouble =
        engine != nullptr ? engine->health().trouble : EngineTrouble::kEnded;
    if (end.ok() && tracked != nullptr && !Lives(trouble)) {
      end = Status(Code::kUnavailable, Describe(trouble));
    }
    if (!end.ok()) {
      connection.Failed(end);
      break;
    }
    if (engine != nullptr && tracked == nullptr && trouble == EngineTrouble::kNone) {
      tracked = std::make_unique<Tracked>(*this, *engine);
      connection.Ready(*tracked);
    }
    // A process that stands still gives no sign of life through us either.
    if (trouble == EngineTrouble::kSilent) continue;
    connection.Beat(engine != nullptr ? engine->stats() : EngineStats{});
  }
  const MonotonicClock clock;
  const Seconds end = clock.Now() + kEndOfDoor;
  while (!stop.stop_requested() && clock.Now() < end) std::this_thread::sleep_for(kBeat);
  connection.Shutdown();
}

void NodeReplica::OnEvents(const std::vector<TokenEvent>& events) {
  std::shared_ptr<EngineConnection> connection;
  {
    const std::lock_guard lock(mutex_);
    for (const TokenEvent& event : events) {
      if (event.finish != FinishReason::kNone) open_.erase(event.request);
    }
    connection = connection_;
    changed_.notify_all();
  }
  if (connection != nullptr) connection->Events(events);
}

// Nobody waits for them any more. The next door may use the same numbers: all are over when this
// returns.
void NodeReplica::DropRequests() {
  Engine* const engine = this->engine();
  if (engine == nullptr) return;
  std::vector<RequestId> open;
  {
    const std::lock_guard lock(mutex_);
    open.assign(open_.begin(), open_.end());
  }
  if (!open.empty()) BT_LOG(Info, "{}: {} requests are dropped", name_, open.size());
  for (const RequestId id : open) engine->Abort(id);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return open_.empty(); });
}

}  // namespace baltoro
