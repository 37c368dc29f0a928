#include "engine/remote_engine.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/child_process.h"
#include "base/log_format.h"
#include "base/profile.h"
#include "comm/rank_socket.h"
#include "engine/engine_process.h"
#include "engine/layout_choice.h"
#include "engine/request_check.h"
#include "parallel/nodes.h"

namespace baltoro {

namespace {

constexpr double kLeaveSeconds = 2;
constexpr int64_t kProfileStartNs =
    3'000'000'000;  // for which the start of a profile is waited for
// What one start meets may be an accident, and what one that takes long met is long ago.
constexpr int kStartsInVainMin = 3;
constexpr int64_t kQueuedCapacities = 8;  // waiting tokens, in contents of the cache
constexpr int64_t kConstraintBytesMax = int64_t{60} << 20;  // one of them fits a frame

EngineStats CountersOf(const EngineStats& stats) {
  return CountedSoFar(stats, {});
}

template <typename T>
std::string EncodeOne(const T& value) {
  WireWriter writer;
  Encode(writer, value);
  return writer.Take();
}

}  // namespace

Result<std::unique_ptr<Engine>> RemoteEngine::Start(const EngineConfig& config,
                                                    const RemoteEngineOptions& options,
                                                    EventSink sink,
                                                    LoadProgress progress) {
  std::unique_ptr<RemoteEngine> engine(
      new RemoteEngine(config, options, std::move(sink), std::move(progress)));
  if (engine->Comes()) {
    BT_ASSIGN_OR_RETURN(const EngineInfo told, options.coming.agreed->Wait());
    const std::lock_guard lock(engine->mutex_);
    engine->info_ = told;
  } else {
    std::unique_lock lock(engine->mutex_);
    engine->changed_.wait(lock, [&] { return engine->Answered(); });
    if (engine->first_failure_.has_value()) return *engine->first_failure_;
    if (!engine->info_.has_value()) return engine->end_;
  }
  return std::unique_ptr<Engine>(std::move(engine));
}

RemoteEngine::RemoteEngine(const EngineConfig& config,
                           const RemoteEngineOptions& options,
                           EventSink sink,
                           LoadProgress progress)
    : config_(config),
      options_(options),
      sink_(std::move(sink)),
      progress_(std::move(progress)),
      constraints_({.what = "output formats", .bytes_max = kConstraintBytesMax}),
      pictures_({.what = "pictures",
                 .bytes_max = options.picture_bytes_max,
                 .always_one_request = true,
                 .idle_bytes_max = options.picture_idle_bytes_max}),
      supervisor_([this] { Supervise(); }),
      watcher_([this] { Watch(); }) {}

RemoteEngine::~RemoteEngine() {
  {
    const std::lock_guard lock(mutex_);
    state_ = State::kStopping;
    if (connection_ != nullptr) {
      connection_->Send(static_cast<uint16_t>(Message::kStop), "");
      connection_->Shutdown();
    }
    changed_.notify_all();
  }
  supervisor_.join();
  watcher_.join();
}

struct RemoteEngine::Luggage {
  std::vector<CarriedThing> constraints, pictures;  // at most one constraint
  std::vector<SharedBytes> constraint_bytes, picture_bytes;
};

// Takes it out of the request.
RemoteEngine::Luggage RemoteEngine::Unpack(Request& request) {
  Luggage luggage;
  if (SharedBytes bytes = std::exchange(request.constraint, {}); !bytes.empty()) {
    luggage.constraints.push_back(
        {.key = CarriedKey::OfBytes(bytes), .size = static_cast<int64_t>(bytes.size())});
    luggage.constraint_bytes.push_back(std::move(bytes));
  }
  for (RequestPicture& picture : request.pictures) {
    SharedBytes bytes = std::exchange(picture.pixels, {});
    luggage.pictures.push_back({.key = CarriedKey::OfHash(picture.hash, request.cache_salt),
                                .size = static_cast<int64_t>(bytes.size())});
    luggage.picture_bytes.push_back(std::move(bytes));
  }
  return luggage;
}

Status RemoteEngine::Submit(Request request) {
  BT_RETURN_IF_ERROR(CheckRequest(request, *info_));
  const auto tokens = static_cast<int64_t>(request.prompt.size());
  // All that takes long is done before the lock: health() and everybody else wait for it.
  const Luggage luggage = Unpack(request);
  const SharedBytes payload(EncodeOne(request));
  const size_t names = (2 + luggage.pictures.size()) * sizeof(uint64_t);
  if (payload.size() + names > kFramePayloadMax) {
    return InvalidArgument("the request is too large");
  }
  for (const CarriedThing& picture : luggage.pictures) {
    if (picture.size + sizeof(uint64_t) > kFramePayloadMax) {
      return InvalidArgument(fmt::format("a picture of {} bytes; at most {} are supported",
                                         picture.size, kFramePayloadMax - sizeof(uint64_t)));
    }
  }
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady) {
    return Status(Code::kUnavailable, "the engine is not running; it is being started again");
  }
  // The engine's own limits, seen from here: what is on its way counts as waiting.
  // Who is alone does not ask which one is meant.
  OpenRequest open;
  open.prompt_tokens = tokens;
  open.replica = queues_.size() > 1 ? request.replica : 0;
  if (open.replica < 0 || open.replica >= std::ssize(queues_)) {
    return InvalidArgument("a request to replicas that share experts names one of them");
  }
  Queue& queue = QueueOf(open);
  if (queue.requests >= config_.max_queued_requests ||
      queue.tokens + tokens > kQueuedCapacities * info_->kv_cache_tokens) {
    return Status(Code::kResourceExhausted,
                  fmt::format("the queue is full: {} requests are waiting", queue.requests));
  }
  if (open_.contains(request.id)) return Status(Code::kInternal, "the request id is in use");
  BT_RETURN_IF_ERROR(CheckRoom(luggage, payload.size()));
  const std::vector<uint64_t> constraint =
      Carry(constraints_, luggage.constraints, luggage.constraint_bytes);
  if (!constraint.empty()) open.constraint = constraint[0];
  open.pictures = Carry(pictures_, luggage.pictures, luggage.picture_bytes);
  WireWriter head;
  head.Put(open.constraint);
  head.PutArray<uint64_t>(open.pictures);
  open_.emplace(request.id, std::move(open));
  ++queue.requests;
  queue.tokens += tokens;
  // If the connection has just ended, the supervisor ends the request.
  connection_->Send(static_cast<uint16_t>(Message::kSubmit), head.Take(), payload);
  return {};
}

// Whether the process may hold it, and what waits to be read may become so much more. Under mutex_.
Status RemoteEngine::CheckRoom(const Luggage& luggage, size_t payload_bytes) const {
  BT_ASSIGN_OR_RETURN(const int64_t constraint, constraints_.CheckRoom(luggage.constraints));
  BT_ASSIGN_OR_RETURN(const int64_t pictures, pictures_.CheckRoom(luggage.pictures));
  const auto unsent = static_cast<int64_t>(connection_->unsent_bytes());
  const int64_t fresh = constraint + pictures + static_cast<int64_t>(payload_bytes);
  if (unsent == 0 || unsent + fresh <= options_.unsent_bytes_max) return {};
  return Status(
      Code::kResourceExhausted,
      fmt::format("the queue is full: {} MiB are on their way to the engine", unsent >> 20));
}

// Sends what is new of it, and tells the names. Under mutex_, so that it comes before the request.
std::vector<uint64_t> RemoteEngine::Carry(CarriedThings& account,
                                          const std::vector<CarriedThing>& things,
                                          const std::vector<SharedBytes>& bytes) {
  std::vector<uint64_t> names;
  for (size_t i = 0; i < things.size(); ++i) {
    const CarriedThings::Use use = account.Take(things[i], last_name_);
    TellDropped(account);  // before what takes its room
    names.push_back(use.name);
    if (!use.is_new) continue;
    WireWriter head;
    head.Put(use.name);
    connection_->Send(static_cast<uint16_t>(Message::kCarry), head.Take(), bytes[i]);
  }
  return names;
}

void RemoteEngine::TellDropped(CarriedThings& account) {
  for (const uint64_t name : account.TakeDropped()) {
    WireWriter writer;
    writer.Put(name);
    connection_->Send(static_cast<uint16_t>(Message::kDropCarried), writer.Take());
  }
}

void RemoteEngine::Abort(RequestId id) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::kReady || !open_.contains(id)) return;
  WireWriter writer;
  writer.Put(id);
  connection_->Send(static_cast<uint16_t>(Message::kAbort), writer.Take());
}

void RemoteEngine::Profile(const ProfileAsk& ask, const ProfileDone& done) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::kReady) {
      ProfileAsk sent = ask;
      if (ask.start) sent.until_ns = ProfileNow() + kProfileStartNs;
      const uint64_t number = ++profile_asks_made_;
      profile_asks_[number] = {.done = done, .until_ns = sent.until_ns};
      WireWriter writer;
      writer.Put(number);
      Encode(writer, sent);
      connection_->Send(static_cast<uint16_t>(Message::kProfile), writer.Take());
      return;
    }
  }
  done(Status(Code::kUnavailable, "the engine is not running; it is being started again"), {});
}

void RemoteEngine::OnProfiled(uint64_t number, const Status& status, const Json& said) {
  ProfileDone done;
  {
    const std::lock_guard lock(mutex_);
    const auto found = profile_asks_.find(number);
    if (found == profile_asks_.end()) return;  // given up
    done = std::move(found->second.done);
    profile_asks_.erase(found);
  }
  done(status, said);
}

// The engine does not begin them later either.
void RemoteEngine::GiveUpLateStarts() {
  std::vector<ProfileDone> late;
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(profile_asks_, [&, now = ProfileNow()](auto& ask) {
      if (ask.second.until_ns == 0 || now <= ask.second.until_ns) return false;
      late.push_back(std::move(ask.second.done));
      return true;
    });
  }
  for (const ProfileDone& done : late) {
    done(Status(Code::kUnavailable, "The engine is not answering."), {});
  }
}

EngineStats RemoteEngine::stats() const {
  const std::lock_guard lock(mutex_);
  EngineStats stats = CountedSoFar(stats_past_, stats_);
  stats.restarts = restarts_;
  return stats;
}

EngineStats RemoteEngine::stats_of(int32_t replica) const {
  const EngineStats together = stats();
  const std::lock_guard lock(mutex_);
  const auto at = static_cast<size_t>(replica);
  EngineStats own;
  if (at < replica_past_.size()) own = replica_past_[at];
  if (at < replica_stats_.size()) own = CountedSoFar(own, replica_stats_[at]);
  if (replica > 0) return own;
  own.restarts = together.restarts;
  own.log_drops = together.log_drops;
  own.process = together.process;
  return own;
}

EngineHealth RemoteEngine::health() const {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kReady) return {.trouble = Judge().trouble, .next_start = {}};
  EngineHealth health{.trouble = trouble_, .failed_starts = failed_starts_, .next_start = {}};
  if (health.ok()) health.trouble = Comes() ? EngineTrouble::kNoPeer : EngineTrouble::kEnded;
  if (health.trouble == EngineTrouble::kNoPeer && lost_node_ >= 0) {
    health.lost_node = lost_node_;
    health.lost_replicas = ReplicasOfNode(LayoutOf(config_), config_.nodes, lost_node_);
  }
  if (next_start_at_ > 0) health.next_start = std::max(0.0, next_start_at_ - clock_.Now());
  return health;
}

// Under mutex_, of a process that is ready.
EngineVerdict RemoteEngine::Judge() const {
  return JudgeEngine(stats_, clock_.Now() - heard_at_, trial_step_, options_.health);
}

// Ends a process that is not waited for any more; the supervisor then starts another.
void RemoteEngine::Watch() {
  constexpr std::chrono::milliseconds kLook(200);
  // While this process stood still too (a machine that was suspended), the engine's beats wait to
  // be read: only looks in a row count, so that they are.
  constexpr int kLostLooks = 10;
  int lost_looks = 0;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kLook, [this] { return state_ == State::kStopping; })) {
    if (!profile_asks_.empty()) {
      lock.unlock();
      GiveUpLateStarts();
      lock.lock();
    }
    const EngineVerdict verdict = state_ == State::kReady ? Judge() : EngineVerdict{};
    lost_looks = verdict.lost ? lost_looks + 1 : 0;
    if (lost_looks < kLostLooks) continue;
    lost_looks = 0;
    BT_LOG(Error, "{} It is not waited for any longer ({})", Describe(verdict.trouble),
           Comes() ? options_.coming.name : fmt::format("pid {}", pid_));
    state_ = State::kDown;
    trouble_ = verdict.trouble;
    said_why_ = true;  // as good as
    connection_->Shutdown();
  }
}

EngineTrouble RemoteEngine::TroubleOf(const Status& said) const {
  switch (said.code()) {
    case Code::kInvalidArgument:
    case Code::kNotFound:
      return EngineTrouble::kRefused;
    case Code::kResourceExhausted:
      return EngineTrouble::kNoMemory;
    case Code::kUnavailable:
      return config_.nodes > 1 ? EngineTrouble::kNoPeer : EngineTrouble::kFailed;
    case Code::kOk:
    case Code::kInternal:
      break;
  }
  return EngineTrouble::kFailed;
}

Status RemoteEngine::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

pid_t RemoteEngine::pid() const {
  const std::lock_guard lock(mutex_);
  return pid_;
}

void RemoteEngine::Supervise() {
  if (Comes()) {
    while (!GivesUp(RunConnection())) {
    }
    return;
  }
  while (!GivesUp(RunOnce()) && WaitBeforeRestart()) {
  }
}

// There is nothing more to start, or it has been in vain for too long.
bool RemoteEngine::GivesUp(bool was_healthy) {
  const std::lock_guard lock(mutex_);
  starts_in_vain_ = was_healthy ? 0 : starts_in_vain_ + 1;
  if (was_healthy || away_since_ == 0) away_since_ = clock_.Now();
  if (first_failure_.has_value() || !end_.ok() || state_ == State::kStopping) return true;
  ++restarts_;
  const Seconds away = clock_.Now() - away_since_;
  if (options_.give_up_after == 0 || away < options_.give_up_after) return false;
  if (starts_in_vain_ < kStartsInVainMin) return false;
  end_ = Status(Code::kInternal,
                fmt::format("for {:.0f} s no engine has stayed (--engine-restart-timeout); failed "
                            "starts since the last one that was ready: {}{}",
                            away, failed_starts_,
                            last_reason_.empty() ? "" : "; the last said: " + last_reason_));
  changed_.notify_all();
  return true;
}

bool RemoteEngine::RunOnce() {
  Result<ChildProcess> child = StartChild(options_.command);
  std::shared_ptr<FrameConnection> connection;
  {
    const std::lock_guard lock(mutex_);
    if (!child.ok()) {
      BT_LOG(Error, "The engine cannot be started: {}", child.status().message());
      last_reason_ = child.status().message();
      trouble_ = EngineTrouble::kCannotRun;
      ++failed_starts_;
      if (!info_.has_value()) first_failure_ = child.status();
      changed_.notify_all();
      return false;
    }
    pid_ = child.value().pid;
    connection = std::make_shared<FrameConnection>(child.value().fd);
    connection_ = connection;
    if (state_ == State::kStopping) connection->Shutdown();
    ready_at_ = next_start_at_ = 0;
    said_why_ = false;
  }
  connection->Send(static_cast<uint16_t>(Message::kConfig), EncodeOne(config_));
  const Status status =
      connection->ReadFrames([this](const Frame& frame) { return Handle(frame); });

  Seconds ready_seconds = 0;
  bool stopping = false;
  int32_t lost_node = -1;
  {
    const std::lock_guard lock(mutex_);
    stopping = state_ == State::kStopping;
    if (!said_why_) trouble_ = EngineTrouble::kEnded;
    if (said_why_ && ready_at_ > 0) lost_node = lost_node_;
    if (!stopping) state_ = State::kDown;
    if (ready_at_ > 0) {
      ready_seconds = clock_.Now() - ready_at_;
    } else {
      ++failed_starts_;
    }
  }
  // First the clients, who wait, then the process.
  FailOpenRequests(stopping ? "the server is stopping" : kEngineLost);
  std::string end = ReapChild(child.value().pid, kLeaveSeconds);
  const std::string last_words = TakeLastWords(child.value());
  if (!last_words.empty()) end += ": " + last_words;
  // Of a process that never was ready Start() tells.
  const bool tells = !stopping && info_.has_value() && !IsServerStopped(status);
  if (tells && lost_node >= 0) {
    BT_LOG(Error,
           "{}: the answers under way have ended with an error; the engine is started again, waits "
           "for that node and then serves",
           status.message());
    BT_LOG(Debug, "The engine process (pid {}) is gone ({})", child.value().pid, end);
  } else if (tells) {
    BT_LOG(Error, "The engine process (pid {}) is gone ({}){}", child.value().pid, end,
           status.ok() ? "" : ": " + status.message());
  }
  const std::lock_guard lock(mutex_);
  pid_ = -1;
  connection_ = nullptr;
  KeepCounters();
  if (!last_words.empty() && !said_why_) last_reason_ = last_words;
  const bool again = Follows() && status.code() == Code::kUnavailable;  // as it said itself
  if (!info_.has_value() && !first_failure_.has_value() && !again) {
    first_failure_ = Status(Code::kInternal,
                            fmt::format("the engine process ended while it was loading: {}", end));
  }
  changed_.notify_all();
  return ready_seconds >= options_.healthy_after;
}

// Under mutex_, of a process that has ended.
void RemoteEngine::KeepCounters() {
  stats_past_ = CountedSoFar(stats_past_, CountersOf(stats_));
  replica_past_.resize(std::max(replica_past_.size(), replica_stats_.size()));
  for (size_t i = 0; i < replica_stats_.size(); ++i) {
    replica_past_[i] = CountedSoFar(replica_past_[i], CountersOf(replica_stats_[i]));
  }
  replica_stats_.clear();
  stats_ = {};
}

bool RemoteEngine::RunConnection() {
  const int fd = options_.coming.take_connection([this] {
    const std::lock_guard lock(mutex_);
    return state_ == State::kStopping;
  });
  if (fd < 0) return true;
  const std::string from = PeerText(fd);
  const auto connection = std::make_shared<FrameConnection>(fd);
  {
    const std::lock_guard lock(mutex_);
    connection_ = connection;
    if (state_ == State::kStopping) connection->Shutdown();
    said_why_ = false;
  }
  const Status status =
      connection->ReadFrames([this](const Frame& frame) { return Handle(frame); });
  bool stopping = false;
  {
    const std::lock_guard lock(mutex_);
    stopping = state_ == State::kStopping;
    if (!said_why_) trouble_ = EngineTrouble::kNoPeer;
    if (!stopping) state_ = State::kDown;
  }
  FailOpenRequests(stopping ? "the server is stopping" : kEngineLost);
  if (!stopping) {
    BT_LOG(Error, "{}, which came from {}, is gone: {}; it is let in when it comes again",
           options_.coming.name, from, status.ok() ? "its connection has ended" : status.message());
  }
  const std::lock_guard lock(mutex_);
  connection_ = nullptr;
  // Its counters go on when it comes again, and it does nothing until then.
  stats_.running = stats_.waiting = 0;
  stats_.kv_usage = 0;
  return true;
}

Status RemoteEngine::Handle(const Frame& frame) {
  WireReader reader(frame.payload);
  {
    const std::lock_guard lock(mutex_);
    heard_at_ = clock_.Now();  // whatever it says
  }
  switch (static_cast<Message>(frame.type)) {
    case Message::kProgress: {
      const auto done = reader.Get<int64_t>();
      const auto total = reader.Get<int64_t>();
      BT_RETURN_IF_ERROR(reader.Finish("progress"));
      if (progress_) progress_(done, total);
      return {};
    }
    case Message::kReady: {
      const EngineInfo info = DecodeEngineInfo(reader);
      BT_RETURN_IF_ERROR(reader.Finish("engine information"));
      return OnReady(info);
    }
    case Message::kFailed: {
      Status why = DecodeStatus(reader);
      const auto lost_node = reader.Get<int32_t>();
      BT_RETURN_IF_ERROR(reader.Finish("failure"));
      const std::lock_guard lock(mutex_);
      last_reason_ = why.message();
      trouble_ = TroubleOf(why);
      // What a start that fails says about its nodes is no news of one.
      if (ready_at_ > 0 || trouble_ != EngineTrouble::kNoPeer) lost_node_ = -1;
      if (lost_node >= 0 && lost_node < config_.nodes) lost_node_ = lost_node;
      said_why_ = true;
      if (Follows() && why.code() == Code::kUnavailable) return why;  // the others may come back
      if (!info_.has_value() && !Comes()) first_failure_ = why;
      if (Follows()) end_ = why;
      return why.ok() ? InvalidArgument("a failure without a reason") : why;
    }
    case Message::kStep: {
      std::vector<TokenEvent> events = DecodeEvents(reader);
      BT_RETURN_IF_ERROR(reader.Finish("step"));
      OnStep(std::move(events));
      return {};
    }
    case Message::kProfiled: {
      const auto number = reader.Get<uint64_t>();
      const Status status = DecodeStatus(reader);
      const Result<Json> said = ParseJson(reader.GetBytes());
      BT_RETURN_IF_ERROR(reader.Finish("profile"));
      if (!said.ok()) return said.status();
      OnProfiled(number, status, said.value());
      return {};
    }
    case Message::kStats: {
      ToldStats told = DecodeToldStats(reader);
      BT_RETURN_IF_ERROR(reader.Finish("statistics"));
      OnStats(std::move(told));
      return {};
    }
    default:
      return InvalidArgument(
          fmt::format("a message of type {}, which an engine does not send", frame.type));
  }
}

Status RemoteEngine::OnReady(const EngineInfo& info) {
  std::string difference;
  if (Comes()) difference = DifferenceOf(options_.coming.agreed->Agree(info), info);
  const std::lock_guard lock(mutex_);
  if (!difference.empty()) {
    difference = "it is not as the other replicas are: " + difference;
    connection_->Send(static_cast<uint16_t>(Message::kRefused), difference);
    return InvalidArgument(difference);
  }
  if (!info_.has_value() && !Comes()) {
    info_ = info;
    // A process that is started again takes the same memory, whatever is free then.
    config_.kv_cache_bytes = info.kv_cache_bytes;
    config_.max_model_len = info.max_model_len;
    config_.join_timeout = config_.rejoin_timeout;
    queues_.resize(static_cast<size_t>(info.replicas));
  }
  last_reason_.clear();
  ready_at_ = clock_.Now();
  trouble_ = EngineTrouble::kNone;
  lost_node_ = -1;
  failed_starts_ = 0;
  trial_step_ = info.longest_step_seconds;
  if (state_ != State::kStopping) state_ = State::kReady;
  changed_.notify_all();
  if (Comes()) {
    BT_LOG(Info, "{} is ready{}", options_.coming.name, restarts_ > 0 ? " again" : "");
  } else if (restarts_ > 0) {
    BT_LOG(Info, "The engine is ready again (pid {})", pid_);
  }
  return {};
}

void RemoteEngine::OnStep(std::vector<TokenEvent> events) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(events, [&](TokenEvent& event) {
      const auto open = open_.find(event.request);
      if (open == open_.end()) return true;
      event.replica = open->second.replica;
      if (event.started && !open->second.started) {
        open->second.started = true;
        LeaveQueue(open->second);
      }
      if (event.finish != FinishReason::kNone) CloseRequest(open);
      // The process is about to leave. What came now would only hear the same.
      if (event.finish == FinishReason::kLost && state_ == State::kReady) state_ = State::kDown;
      return false;
    });
  }
  if (!events.empty()) sink_(std::move(events));
}

void RemoteEngine::OnStats(ToldStats told) {
  const std::lock_guard lock(mutex_);
  if (Comes() && told.together.step < stats_.step) KeepCounters();  // another process has come
  stats_ = told.together;
  replica_stats_ = std::move(told.replicas);
}

void RemoteEngine::FailOpenRequests(const std::string& why) {
  std::vector<TokenEvent> events;
  std::unordered_map<uint64_t, OpenProfile> profile_asks;
  {
    const std::lock_guard lock(mutex_);
    profile_asks.swap(profile_asks_);
    for (const auto& [id, open] : open_) {
      TokenEvent& event = events.emplace_back();
      event.request = id;
      event.replica = open.replica;
      event.Fail(Status(Code::kUnavailable, why));
    }
    open_.clear();
    constraints_.Clear();
    pictures_.Clear();
    queues_.assign(queues_.size(), {});
  }
  for (const auto& [number, ask] : profile_asks) ask.done(Status(Code::kUnavailable, why), {});
  if (!events.empty()) sink_(std::move(events));
}

void RemoteEngine::LeaveQueue(const OpenRequest& open) {
  Queue& queue = QueueOf(open);
  --queue.requests;
  queue.tokens -= open.prompt_tokens;
}

void RemoteEngine::CloseRequest(std::unordered_map<RequestId, OpenRequest>::iterator open) {
  if (!open->second.started) LeaveQueue(open->second);
  if (open->second.constraint != 0) constraints_.Release(open->second.constraint);
  for (const uint64_t name : open->second.pictures) pictures_.Release(name);
  // At once: nobody may come for long whose request would tell it.
  TellDropped(constraints_);
  TellDropped(pictures_);
  open_.erase(open);
}

// False when it is time to stop.
bool RemoteEngine::WaitBeforeRestart() {
  std::unique_lock lock(mutex_);
  Seconds wait = options_.backoff_first;
  for (int i = 0; i < starts_in_vain_; ++i) wait = std::min(2 * wait, options_.backoff_max);
  BT_LOG(Info, "Starting the engine again in {:.1f} s{}", wait,
         failed_starts_ > 0 ? fmt::format("; failed starts: {}", failed_starts_) : "");
  next_start_at_ = clock_.Now() + wait;
  return !changed_.wait_for(lock, std::chrono::duration<double>(wait),
                            [this] { return state_ == State::kStopping; });
}

Result<std::unique_ptr<Engine>> StartEngineProcess(const EngineConfig& config,
                                                   const EngineProcess& process,
                                                   EventSink sink,
                                                   const LoadProgress& progress) {
  RemoteEngineOptions options;
  options.give_up_after = process.restart_timeout;
  // One node's end is every node's, and a start waits for the others some seconds: the pauses
  // between have to be shorter, or they would miss each other.
  if (config.nodes > 1) options.backoff_max = 1;
  options.command = {
      process.program, "engine", "--fd", "3", "--log-level", LogLevelName(CurrentLogLevel())};
  if (CurrentLogFormat() == LogFormat::kJson)
    options.command.insert(options.command.end(), {"--log-format", "json"});
  if (process.replica >= 0) {
    options.command.insert(options.command.end(), {"--replica", std::to_string(process.replica)});
  }
  if (!process.visible_devices.empty()) {
    options.command.insert(options.command.end(), {"--visible-devices", process.visible_devices});
  }
  return RemoteEngine::Start(config, options, std::move(sink), progress);
}

}  // namespace baltoro
