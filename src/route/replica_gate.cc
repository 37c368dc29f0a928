#include "route/replica_gate.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/wire.h"
#include "comm/handshake.h"
#include "comm/hello.h"

namespace baltoro {
namespace {

constexpr Seconds kAnswerLimit = 5;
constexpr Seconds kRound = 0.1;    // how soon the end is seen
constexpr Seconds kFirstTell = 2;  // about who is missing
constexpr Seconds kTell = 10;      // between two such lines, and twice as long each time
constexpr Seconds kTellMax = 300;
constexpr size_t kReasonMax = kRefusalMax;
// A machine that lost power or its cable is noticed by then.
constexpr int kSilenceMs = 10000;

enum class Answer : uint32_t { kComeIn = 1, kRefused = kRefusedAnswer, kTaken = 3 };

std::string AnswerFrame(Answer answer, const std::string& why) {
  WireWriter out;
  out.Put(static_cast<uint32_t>(answer));
  out.PutBytes(why.substr(0, kReasonMax));
  return out.bytes();
}

// A socket for frames: it waits for reads, sends at once, and ends when the peer's machine is gone.
Result<int> Plain(RankSocket socket) {
  const int fd = fcntl(socket.get(), F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return Status(Code::kUnavailable, "no more files can be opened");
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  const auto set = [fd](int level, int name, int value) {
    setsockopt(fd, level, name, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, 3);
  set(IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set(IPPROTO_TCP, TCP_KEEPCNT, 7);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kSilenceMs);
  return fd;
}

Hello HelloOf(const ReplicaMeeting& meeting, int32_t replica) {
  return {.purpose = Purpose::kReplica,
          .rank = replica,
          .ranks = meeting.replicas,
          .fingerprint = meeting.fingerprint};
}

}  // namespace

Result<std::unique_ptr<ReplicaGate>> ReplicaGate::Open(const ReplicaMeeting& meeting,
                                                       int32_t first) {
  Result<RankSocket> listener = ListenAt(meeting.head);
  if (!listener.ok()) {
    return InvalidArgument(fmt::format(
        "{}: the head needs an address of its own in --data-parallel-address and a free port in "
        "--data-parallel-rpc-port, the same on all nodes",
        listener.status().message()));
  }
  std::unique_ptr<ReplicaGate> gate(new ReplicaGate(meeting, first, std::move(listener).value()));
  BT_LOG(Info, "Replicas of other nodes ({} to {} of {}) come to {}", first, meeting.replicas - 1,
         meeting.replicas, gate->address_.Text());
  return gate;
}

ReplicaGate::ReplicaGate(const ReplicaMeeting& meeting, int32_t first, RankSocket listener)
    : meeting_(meeting),
      first_(first),
      address_(meeting.head),
      slots_(static_cast<size_t>(meeting.replicas)),
      acceptor_(
          [&] {
            if (const auto local = LocalAddress(listener.get()); local.ok()) {
              address_.port = local.value().port;
            }
            return std::move(listener);
          }(),
          meeting.cluster_key),
      thread_([this](const std::stop_token& stop) { Run(stop); }) {}

ReplicaGate::~ReplicaGate() {
  thread_.request_stop();
  thread_.join();
  for (const Slot& slot : slots_) {
    if (slot.fd >= 0) close(slot.fd);
  }
}

int ReplicaGate::Take(int32_t replica, const std::function<bool()>& stopped) {
  std::unique_lock lock(mutex_);
  Slot& slot = slots_.at(static_cast<size_t>(replica));
  slot.taken = false;
  while (slot.fd < 0) {
    lock.unlock();
    if (stopped()) return -1;
    lock.lock();
    changed_.wait_for(lock, std::chrono::duration<double>(kRound));
  }
  slot.taken = true;
  return std::exchange(slot.fd, -1);
}

void ReplicaGate::Run(const std::stop_token& stop) {
  const MonotonicClock clock;
  Seconds pause = kFirstTell, tell_at = clock.Now() + pause;
  while (!stop.stop_requested()) {
    std::optional<PeerAcceptor::Arrival> arrival = acceptor_.Next(clock.Now() + kRound);
    if (arrival.has_value()) Admit(std::move(*arrival));
    const std::string missing = Missing();
    if (missing.empty()) {
      pause = kFirstTell;
      tell_at = clock.Now() + pause;
    } else if (clock.Now() >= tell_at) {
      const std::string refusal = acceptor_.last_refusal();
      BT_LOG(Info, "Waiting for {} of other nodes, at {}{}", missing, address_.Text(),
             refusal.empty() ? "" : fmt::format(" (not admitted: {})", refusal));
      pause = pause < kTell ? kTell : std::min(2 * pause, kTellMax);
      tell_at = clock.Now() + pause;
    }
  }
}

void ReplicaGate::Admit(PeerAcceptor::Arrival arrival) {
  const Seconds deadline = MonotonicClock().Now() + kAnswerLimit;
  const std::optional<Hello> hello = Hello::FromWire(arrival.hello);
  if (hello.has_value() && hello->purpose == Purpose::kJoin) {
    BT_LOG_LIMITED(Warning, "A node of {} was refused: {}", PeerText(arrival.socket.fd()),
                   OtherKind(hello->purpose));
    static_cast<void>(arrival.socket.Send(OtherKindFrame(hello->purpose), deadline));
    return;
  }
  if (!hello.has_value() || hello->purpose != Purpose::kReplica) return;  // nobody for this door
  const std::string who =
      fmt::format("replica {} of {}", hello->rank, PeerText(arrival.socket.fd()));
  std::string why = Difference(HelloOf(meeting_, 0), *hello, "replica");
  if (why.empty() && hello->rank < first_) {
    why = fmt::format(
        "the head has the replicas 0 to {} itself: --data-parallel-start-rank must be "
        "{} or more",
        first_ - 1, first_);
  }
  if (!why.empty()) {
    BT_LOG_LIMITED(Warning, "{} was refused: {}", who, why);
    static_cast<void>(arrival.socket.Send(ReplicaRefusal(why), deadline));
    return;
  }
  const std::unique_lock lock(mutex_);
  Slot& slot = slots_.at(static_cast<size_t>(hello->rank));
  if (slot.taken || slot.fd >= 0) {
    why = fmt::format(
        "the head has a replica {} already; each needs a number of its own "
        "(--data-parallel-start-rank)",
        hello->rank);
    static_cast<void>(arrival.socket.Send(AnswerFrame(Answer::kTaken, why), deadline));
    return;
  }
  if (!arrival.socket.Send(AnswerFrame(Answer::kComeIn, ""), deadline).ok()) return;
  const Result<int> fd = Plain(arrival.socket.Release());
  if (!fd.ok()) return;
  slot.fd = fd.value();
  changed_.notify_all();
  BT_LOG(Info, "There is {}", who);
}

// "replicas 2, 3"; empty: all are there.
std::string ReplicaGate::Missing() const {
  const std::lock_guard lock(mutex_);
  std::vector<int32_t> missing;
  for (int32_t replica = first_; replica < meeting_.replicas; ++replica) {
    const Slot& slot = slots_[static_cast<size_t>(replica)];
    if (!slot.taken && slot.fd < 0) missing.push_back(replica);
  }
  if (missing.empty()) return "";
  return fmt::format("replica{} {}", missing.size() > 1 ? "s" : "", fmt::join(missing, ", "));
}

Result<int> VisitGate(const ReplicaMeeting& meeting, int32_t replica, Seconds deadline) {
  BT_ASSIGN_OR_RETURN(RankSocket socket, ConnectTo(meeting.head, deadline));
  BT_ASSIGN_OR_RETURN(SealedSocket sealed,
                      SealedSocket::Open(std::move(socket), meeting.cluster_key,
                                         SealedSocket::Side::kConnected, deadline));
  BT_RETURN_IF_ERROR(sealed.Send(HelloOf(meeting, replica).ToWire(), deadline));
  BT_ASSIGN_OR_RETURN(const std::string frame, sealed.Receive(deadline));
  WireReader in(frame);
  const auto answer = static_cast<Answer>(in.Get<uint32_t>());
  const std::string why = Printable(in.GetBytes(kReasonMax));
  if (!in.AtEnd()) return Status(Code::kUnavailable, "the head sent a damaged answer");
  switch (answer) {
    case Answer::kComeIn:
      return Plain(sealed.Release());
    case Answer::kRefused:
      return InvalidArgument(why);
    case Answer::kTaken:
      return Status(Code::kResourceExhausted, why);
  }
  return Status(Code::kUnavailable, "the head sent a damaged answer");
}

}  // namespace baltoro
