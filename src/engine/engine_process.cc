#include "engine/engine_process.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/child_process.h"
#include "base/last_words.h"
#include "base/log.h"
#include "base/process_use.h"
#include "engine/engine_wire.h"
#include "engine/frame_connection.h"

namespace baltoro {

namespace {

constexpr std::chrono::milliseconds kStatsInterval(100);

template <typename T>
bool SendMessage(FrameConnection& connection, Message type, const T& value) {
  WireWriter writer;
  Encode(writer, value);
  return connection.Send(static_cast<uint16_t>(type), writer.Take());
}

// `lost_node`: the node whose end is why; below 0: none's.
void SendFailed(FrameConnection& connection, const Status& why, int32_t lost_node = -1) {
  WireWriter writer;
  Encode(writer, why);
  writer.Put(lost_node);
  connection.Send(static_cast<uint16_t>(Message::kFailed), writer.Take());
}

void SendEvents(FrameConnection& connection, const std::vector<TokenEvent>& events) {
  WireWriter writer;
  Encode(writer, events);
  std::string payload = writer.Take();
  if (payload.size() <= kFramePayloadMax) {
    connection.Send(static_cast<uint16_t>(Message::kStep), payload);
    return;
  }
  // Too much for one frame (log-probabilities of long prompts): one event each. What is too large
  // even so is an error of its request.
  for (const TokenEvent& event : events) {
    WireWriter single;
    Encode(single, std::vector{event});
    payload = single.Take();
    if (payload.size() > kFramePayloadMax) {
      std::vector<TokenEvent> error(1);
      error[0].request = event.request;
      error[0].Fail(InvalidArgument(
          "the log-probabilities are too many to be sent; ask for fewer, or for a shorter text"));
      WireWriter other;
      Encode(other, error);
      payload = other.Take();
    }
    connection.Send(static_cast<uint16_t>(Message::kStep), payload);
  }
}

}  // namespace

// The engine's side of one connection. The reading thread is the main one; the engine is loaded
// beside it, so that a door that dies while weights are read is noticed at once.
class EngineSide {
 public:
  EngineSide(int fd, ConstraintFactoryMaker constraints)
      : connection_(fd), constraints_(std::move(constraints)) {}
  // For an engine that is not loaded by a configuration of the door.
  explicit EngineSide(int fd) : connection_(fd), configured_(true) {}

  FrameConnection& connection() { return connection_; }
  void SetEngine(Engine* engine) { engine_ = engine; }
  bool stopped() const { return stopped_; }
  Status Serve() {
    return connection_.ReadFrames([this](Frame frame) { return Handle(std::move(frame)); });
  }

  int Run() {
    std::jthread stats([this](const std::stop_token& stop) { SendStats(stop); });
    const Status status =
        connection_.ReadFrames([this](Frame frame) { return Handle(std::move(frame)); });
    if (!status.ok()) BT_LOG(Error, "The connection to the server ends: {}", status.message());
    // Nothing here outlives the door, and nothing needs to be saved.
    ExitAtOnce(status.ok() ? 0 : 1);
  }

 private:
  Status Handle(Frame frame) {
    WireReader reader(frame.payload);
    switch (static_cast<Message>(frame.type)) {
      case Message::kConfig: {
        const EngineConfig config = DecodeEngineConfig(reader);
        BT_RETURN_IF_ERROR(reader.Finish("configuration"));
        if (std::exchange(configured_, true)) return InvalidArgument("a second configuration");
        std::thread([this, config] { Load(config); }).detach();  // ends with the process
        return {};
      }
      case Message::kSubmit: {
        const auto constraint = reader.Get<uint64_t>();
        const std::vector<uint64_t> pictures = reader.GetArray<uint64_t>();
        Request request = DecodeRequest(reader);
        BT_RETURN_IF_ERROR(reader.Finish("request"));
        if (pictures.size() != request.pictures.size()) {
          return InvalidArgument("a request has other pictures than it names");
        }
        if (constraint != 0) {
          BT_ASSIGN_OR_RETURN(request.constraint, Carried(constraint));
        }
        for (size_t i = 0; i < pictures.size(); ++i) {
          BT_ASSIGN_OR_RETURN(request.pictures[i].pixels, Carried(pictures[i]));
        }
        Submit(std::move(request));
        return {};
      }
      case Message::kCarry: {
        const auto name = reader.Get<uint64_t>();
        if (!reader.ok()) return reader.Finish("thing that requests name");
        // The frame's own memory becomes the one copy that all requests share.
        frame.payload.erase(0, sizeof(name));
        carried_.insert_or_assign(name, SharedBytes(std::move(frame.payload)));
        return {};
      }
      case Message::kDropCarried: {
        const auto name = reader.Get<uint64_t>();
        BT_RETURN_IF_ERROR(reader.Finish("name of a thing"));
        carried_.erase(name);
        return {};
      }
      case Message::kProfile: {
        const auto number = reader.Get<uint64_t>();
        const ProfileAsk ask = DecodeProfileAsk(reader);
        BT_RETURN_IF_ERROR(reader.Finish("profile"));
        Profile(number, ask);
        return {};
      }
      case Message::kStop:
        stopped_ = true;
        if (Engine* engine = engine_) engine->Leave();
        return {};
      case Message::kRefused:
        return InvalidArgument(frame.payload);
      case Message::kAbort: {
        const auto id = reader.Get<RequestId>();
        BT_RETURN_IF_ERROR(reader.Finish("abort"));
        if (Engine* engine = engine_) engine->Abort(id);
        return {};
      }
      default:
        return InvalidArgument("a message of type " + std::to_string(frame.type) +
                               ", which an engine does not take");
    }
  }

  Result<SharedBytes> Carried(uint64_t name) const {
    const auto found = carried_.find(name);
    if (found != carried_.end()) return found->second;
    return InvalidArgument("a request names a constraint or a picture that was not sent");
  }

  void Load(const EngineConfig& config) {
    auto engine = StartEngine(
        config, [this](const std::vector<TokenEvent>& events) { SendEvents(connection_, events); },
        [this](int64_t done, int64_t total) {
          WireWriter writer;
          writer.Put(done);
          writer.Put(total);
          connection_.Send(static_cast<uint16_t>(Message::kProgress), writer.Take());
        },
        constraints_);
    if (!engine.ok()) {
      SendFailed(connection_, engine.status());
      return;  // the door closes the connection
    }
    owned_ = std::move(engine).value();
    engine_ = owned_.get();
    SendMessage(connection_, Message::kReady, owned_->info());
  }

  void Profile(uint64_t number, const ProfileAsk& ask) {
    const auto tell = [this, number](const Status& status, const Json& said) {
      WireWriter writer;
      writer.Put(number);
      Encode(writer, status);
      writer.PutBytes(said.dump(-1, ' ', false, Json::error_handler_t::replace));
      connection_.Send(static_cast<uint16_t>(Message::kProfiled), writer.Take());
    };
    if (Engine* engine = engine_) return engine->Profile(ask, tell);
    tell(Status(Code::kUnavailable, "the engine is still loading"), {});
  }

  void Submit(Request request) {
    const RequestId id = request.id;
    Engine* engine = engine_;
    const Status status = engine != nullptr
                              ? engine->Submit(std::move(request))
                              : Status(Code::kUnavailable, "the engine is still loading");
    if (status.ok()) return;
    std::vector<TokenEvent> events(1);
    events[0].request = id;
    const bool lost = status.code() == Code::kUnavailable;
    events[0].Fail(lost ? Status(Code::kUnavailable, kEngineLost) : status);
    SendEvents(connection_, events);
  }

  void SendStats(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::this_thread::sleep_for(kStatsInterval);
      Engine* engine = engine_;
      const EngineHealth health = engine != nullptr ? engine->health() : EngineHealth();
      if (health.trouble == EngineTrouble::kEnded) {
        // The last events are out; the door starts a new process.
        const Status end = engine->end();
        SendFailed(connection_,
                   end.ok() ? Status(Code::kUnavailable, "its steps cannot be computed") : end,
                   health.lost_node);
        BT_LOG(Info, "The engine has stopped; its process leaves");
        std::this_thread::sleep_for(kStatsInterval);
        ExitAtOnce(1);
      }
      ToldStats told;
      if (engine != nullptr) {
        told.together = engine->stats();
        const int32_t replicas = engine->info().replicas;
        for (int32_t i = 0; replicas > 1 && i < replicas; ++i) {
          told.replicas.push_back(engine->stats_of(i));
        }
      }
      told.together.log_drops = LogDropsOfProcess();
      told.together.process = UseOfProcess();
      TellLeftOut();
      SendMessage(connection_, Message::kStats, told);
    }
  }

  FrameConnection connection_;
  const ConstraintFactoryMaker constraints_;
  bool configured_ = false;
  std::atomic<bool> stopped_ = false;
  // By name, the reading thread's. How much it may be is the door's account (carried_things.h).
  std::unordered_map<uint64_t, SharedBytes> carried_;
  std::unique_ptr<Engine> owned_;
  std::atomic<Engine*> engine_{nullptr};
};

EngineConnection::EngineConnection(int fd) : side_(std::make_unique<EngineSide>(fd)) {}

EngineConnection::~EngineConnection() = default;

Status EngineConnection::Serve() {
  return side_->Serve();
}

bool EngineConnection::stopped() const {
  return side_->stopped();
}

void EngineConnection::Ready(Engine& engine) {
  side_->SetEngine(&engine);
  SendMessage(side_->connection(), Message::kReady, engine.info());
}

void EngineConnection::Failed(const Status& why) {
  SendFailed(side_->connection(), why);
}

void EngineConnection::Events(const std::vector<TokenEvent>& events) {
  SendEvents(side_->connection(), events);
}

void EngineConnection::Beat(const EngineStats& stats) {
  SendMessage(side_->connection(), Message::kStats, ToldStats{.together = stats, .replicas = {}});
}

void EngineConnection::Shutdown() {
  side_->connection().Shutdown();
}

int RunEngineProcess(int fd, const ConstraintFactoryMaker& constraints) {
  // The door decides when to leave: a signal to the whole group, like Ctrl-C, must not end streams
  // that it still drains.
  signal(SIGINT, SIG_IGN);
  signal(SIGTERM, SIG_IGN);
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  SetLastWordsPipe(fd + 1);
  CloseDescriptorsFrom(fd + 2);
  EngineSide side(fd, constraints);
  return side.Run();
}

}  // namespace baltoro
