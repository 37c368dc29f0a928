#include "comm/rendezvous.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "base/wire.h"
#include "comm/cluster_key.h"
#include "comm/handshake.h"
#include "comm/hello.h"
#include "comm/link_communicator.h"
#include "comm/peer_acceptor.h"
#include "comm/peer_watch.h"
#include "comm/socket_link.h"

namespace baltoro {
namespace {

constexpr Seconds kRetryPause = 0.05;
constexpr Seconds kConnectLimit = 5;   // for one try, handshake included
constexpr Seconds kWaitingNews = 0.5;  // how often rank 0 says whom it waits for
constexpr size_t kReasonMax = kRefusalMax;

// What rank 0 answers to kJoin.
enum class Answer : uint32_t { kWaiting = 1, kRefused = kRefusedAnswer, kWorld = 3 };

// The file of a Unix listener, for as long as ranks may come to it.
class PathOwner {
 public:
  explicit PathOwner(std::string path) : path_(std::move(path)) {}
  ~PathOwner() {
    if (!path_.empty()) unlink(path_.c_str());  // nothing useful to do on failure
  }
  PathOwner(const PathOwner&) = delete;
  PathOwner& operator=(const PathOwner&) = delete;

 private:
  const std::string path_;
};

// Whether the peer of a connection on which it has nothing to say has closed it.
bool Gone(int fd) {
  char byte = 0;
  const ssize_t got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
}

class Rendezvous {
 public:
  explicit Rendezvous(const WorldOptions& options)
      : options_(options), deadline_(MonotonicClock().Now() + options.join_timeout) {}

  Result<std::unique_ptr<Link>> Join() {
    std::optional<SealedSocket> leader;
    RankAddress own = options_.meeting;
    if (options_.rank != 0) {
      BT_ASSIGN_OR_RETURN(SealedSocket reached, Reach(options_.meeting, Member(0)));
      leader.emplace(std::move(reached));
      if (options_.reached) options_.reached();
      BT_ASSIGN_OR_RETURN(own, OwnAddress(leader->fd()));
    }
    RankSocket listener;
    if (options_.listener != nullptr) {
      BT_CHECK(options_.rank == 0 && options_.listener->valid());
      listener = std::move(*options_.listener);
    } else {
      BT_ASSIGN_OR_RETURN(listener, ListenAt(own));
    }
    const PathOwner path(own.path);
    if (!own.is_unix()) {
      BT_ASSIGN_OR_RETURN(own, LocalAddress(listener.get()));
    }
    PeerAcceptor acceptor(std::move(listener), options_.cluster_key);
    BT_RETURN_IF_ERROR(leader.has_value() ? Follow(&*leader, own) : Lead(&acceptor));
    return ConnectPairs(&acceptor);
  }

 private:
  using Arrival = PeerAcceptor::Arrival;

  Status Fail(Code code, const std::string& why) const {
    return Status(code, fmt::format("rendezvous at {}: {}", options_.meeting.Text(), why));
  }

  std::string Member(int32_t rank) const { return fmt::format("{} {}", options_.member, rank); }

  Seconds Soon(Seconds from_now) const {
    return std::min(deadline_, MonotonicClock().Now() + from_now);
  }

  Hello OwnHello() const {
    return {.purpose = Purpose::kJoin,
            .rank = options_.rank,
            .ranks = options_.ranks,
            .fingerprint = options_.fingerprint};
  }

  // Tries until somebody with our key answers there.
  Result<SealedSocket> Reach(const RankAddress& address, const std::string& who) const {
    while (true) {
      Result<RankSocket> socket = ConnectTo(address, Soon(kConnectLimit));
      Status why = socket.status();
      if (socket.ok()) {
        Result<SealedSocket> sealed =
            SealedSocket::Open(std::move(socket.value()), options_.cluster_key,
                               SealedSocket::Side::kConnected, Soon(kConnectLimit));
        if (sealed.ok()) return sealed;
        why = sealed.status();
      }
      if (why.code() == Code::kInvalidArgument) {
        return Fail(why.code(), fmt::format("{} at {}: {}", who, address.Text(), why.message()));
      }
      if (MonotonicClock().Now() + kRetryPause >= deadline_) {
        return Fail(why.code(), fmt::format("{} could not be reached within {:.1f} s: {}", who,
                                            options_.join_timeout, why.message()));
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(kRetryPause));
    }
  }

  Result<RankAddress> OwnAddress(int leader_fd) const {
    RankAddress own;
    if (options_.meeting.is_unix()) {
      own.path = fmt::format("{}.{}", options_.meeting.path, options_.rank);
      return own;
    }
    own.host = options_.own_host;
    if (own.host.empty()) {
      BT_ASSIGN_OR_RETURN(const RankAddress local, LocalAddress(leader_fd));
      own.host = local.host;
    }
    return own;
  }

  // Rank 0: until all have come and are like us, then tells them where everybody is.
  Status Lead(PeerAcceptor* acceptor) {
    std::map<int32_t, SealedSocket> joined;
    addresses_.assign(static_cast<size_t>(options_.ranks), options_.meeting);
    Status trouble;
    while (trouble.ok() && joined.size() + 1 < static_cast<size_t>(options_.ranks)) {
      std::optional<Arrival> arrival = acceptor->Next(Soon(kWaitingNews));
      if (arrival.has_value()) trouble = Admit(std::move(*arrival), &joined);
      TellWaiting(&joined);
      if (trouble.ok() && MonotonicClock().Now() >= deadline_) trouble = Late(joined, *acceptor);
    }
    std::array<std::byte, 16> random;
    FillRandom(random);
    session_.assign(reinterpret_cast<const char*>(random.data()), random.size());
    const std::string frame = trouble.ok() ? WorldFrame() : JoinRefusal(trouble);
    for (auto& [rank, socket] : joined) {
      const Status sent = socket.Send(frame, MonotonicClock().Now() + kConnectLimit);
      if (trouble.ok() && !sent.ok()) {
        trouble = Fail(sent.code(), fmt::format("{} went away: {}", Member(rank), sent.message()));
      }
    }
    return trouble;
  }

  Status Admit(Arrival arrival, std::map<int32_t, SealedSocket>* joined) {
    const std::optional<Hello> hello = Hello::FromWire(arrival.hello);
    if (hello.has_value() && hello->purpose == Purpose::kReplica) {
      static_cast<void>(arrival.socket.Send(OtherKindFrame(hello->purpose), Soon(kConnectLimit)));
      return Fail(Code::kInvalidArgument, OtherKind(hello->purpose));
    }
    if (!hello.has_value() || hello->purpose != Purpose::kJoin) return Status();  // no rank of now
    const std::string difference = Difference(OwnHello(), *hello, options_.member);
    if (!difference.empty()) {
      Status why = Fail(Code::kInvalidArgument, difference);
      static_cast<void>(arrival.socket.Send(JoinRefusal(why), Soon(kConnectLimit)));
      return why;
    }
    const auto before = joined->find(hello->rank);
    if (before != joined->end() && Gone(before->second.fd())) joined->erase(before);
    if (hello->rank == 0 || joined->count(hello->rank) > 0) {
      const Status why = Fail(Code::kInvalidArgument,
                              fmt::format("there is a {} already; each needs a number of its own",
                                          Member(hello->rank)));
      static_cast<void>(arrival.socket.Send(JoinRefusal(why), Soon(kConnectLimit)));
      return Status();
    }
    addresses_[static_cast<size_t>(hello->rank)] = hello->address;
    joined->emplace(hello->rank, std::move(arrival.socket));
    return Status();
  }

  std::string Missing(const std::map<int32_t, SealedSocket>& joined) const {
    std::vector<int32_t> missing;
    for (int32_t rank = 1; rank < options_.ranks; ++rank) {
      if (joined.count(rank) == 0) missing.push_back(rank);
    }
    return fmt::format("{} {} of {}", options_.member, fmt::join(missing, ", "), options_.ranks);
  }

  Status Late(const std::map<int32_t, SealedSocket>& joined, const PeerAcceptor& acceptor) const {
    const std::string refusal = acceptor.last_refusal();
    return Fail(Code::kUnavailable,
                fmt::format("missing after {:.1f} s: {}{}", options_.join_timeout, Missing(joined),
                            refusal.empty() ? "" : fmt::format(" (not admitted: {})", refusal)));
  }

  // Who has gone meanwhile may come again.
  void TellWaiting(std::map<int32_t, SealedSocket>* joined) const {
    WireWriter news;
    news.Put(static_cast<uint32_t>(Answer::kWaiting));
    news.PutBytes(Missing(*joined));
    for (auto entry = joined->begin(); entry != joined->end();) {
      const bool there = entry->second.Send(news.bytes(), Soon(kConnectLimit)).ok();
      entry = there ? std::next(entry) : joined->erase(entry);
    }
  }

  std::string WorldFrame() const {
    WireWriter out;
    out.Put(static_cast<uint32_t>(Answer::kWorld));
    out.PutBytes(session_);
    out.Put(static_cast<uint32_t>(addresses_.size()));
    for (const RankAddress& address : addresses_) PutAddress(&out, address);
    return out.bytes();
  }

  // Other ranks: says who we are, then hears whom rank 0 waits for, and at last its decision. Rank
  // 0 says when it has waited enough: who left before would be one more to wait for.
  Status Follow(SealedSocket* leader, const RankAddress& own) {
    Hello hello = OwnHello();
    hello.address = own;
    BT_RETURN_IF_ERROR(leader->Send(hello.ToWire(), deadline_));
    std::string missing = "not known";
    while (true) {
      Result<std::string> frame = leader->Receive(deadline_);
      if (!frame.ok()) {
        const bool late = MonotonicClock().Now() >= deadline_;
        return Fail(Code::kUnavailable,
                    late ? fmt::format("missing after {:.1f} s: {}", options_.join_timeout, missing)
                         : Member(0) + " went away: " + frame.status().message());
      }
      WireReader in(frame.value());
      const auto answer = static_cast<Answer>(in.Get<uint32_t>());
      if (answer == Answer::kWaiting) {
        missing = Printable(in.GetBytes(kReasonMax));
        deadline_ = MonotonicClock().Now() + options_.join_timeout;
      } else if (answer == Answer::kRefused) {
        const Code code = in.Get<uint32_t>() == 1 ? Code::kInvalidArgument : Code::kUnavailable;
        return Status(code, Printable(in.GetBytes(kReasonMax)));
      } else {
        return ReadWorld(answer, &in);
      }
      if (!in.AtEnd()) return Fail(Code::kInternal, Member(0) + " sent a damaged answer");
    }
  }

  Status ReadWorld(Answer answer, WireReader* in) {
    session_ = in->GetBytes(sizeof(Digest));
    const bool fits =
        answer == Answer::kWorld && in->Get<uint32_t>() == static_cast<uint32_t>(options_.ranks);
    for (int32_t rank = 0; fits && rank < options_.ranks; ++rank) {
      addresses_.push_back(GetAddress(in));
    }
    if (!fits || !in->AtEnd()) return Fail(Code::kInternal, Member(0) + " sent a damaged answer");
    addresses_[0] = options_.meeting;
    return Status();
  }

  // Two connections for each pair; the higher rank comes to the lower one. There is time for it
  // however late the last one came.
  Result<std::unique_ptr<Link>> ConnectPairs(PeerAcceptor* acceptor) {
    deadline_ = std::max(deadline_, MonotonicClock().Now() + kConnectLimit);
    const auto ranks = static_cast<size_t>(options_.ranks);
    std::vector<RankSocket> control(ranks), data(ranks);
    Hello hello{.rank = options_.rank, .ranks = options_.ranks, .session = session_};
    for (int32_t peer = 0; peer < options_.rank; ++peer) {
      for (const Purpose purpose : {Purpose::kControl, Purpose::kData}) {
        const auto at = static_cast<size_t>(peer);
        BT_ASSIGN_OR_RETURN(SealedSocket socket, Reach(addresses_[at], Member(peer)));
        hello.purpose = purpose;
        BT_RETURN_IF_ERROR(socket.Send(hello.ToWire(), deadline_));
        (purpose == Purpose::kControl ? control : data)[at] = socket.Release();
      }
    }
    BT_RETURN_IF_ERROR(TakePairs(acceptor, &control, &data));
    std::vector<std::string> names;
    for (int32_t rank = 0; options_.name && rank < options_.ranks; ++rank) {
      names.push_back(options_.name(rank, addresses_[static_cast<size_t>(rank)].host));
    }
    BT_ASSIGN_OR_RETURN(std::unique_ptr<PeerWatch> watch,
                        PeerWatch::Create({.member = options_.member,
                                           .names = std::move(names),
                                           .rank = options_.rank,
                                           .heartbeat_interval = options_.heartbeat_interval,
                                           .stall_timeout = options_.stall_timeout},
                                          std::move(control)));
    auto link = std::make_unique<SocketLink>(options_.rank, std::move(data), std::move(watch));
    // Everybody has everybody when this returns.
    GroupOptions all{.name = "world",
                     .call_timeout = std::max(deadline_ - MonotonicClock().Now(), kConnectLimit)};
    for (int32_t rank = 0; rank < options_.ranks; ++rank) all.ranks.push_back(rank);
    BT_ASSIGN_OR_RETURN(const std::unique_ptr<Communicator> world, JoinGroup(link.get(), all));
    const Status met = world->Barrier();
    if (!met.ok()) return Fail(met.code(), met.message());
    return std::unique_ptr<Link>(std::move(link));
  }

  Status TakePairs(PeerAcceptor* acceptor,
                   std::vector<RankSocket>* control,
                   std::vector<RankSocket>* data) const {
    const auto ranks = static_cast<size_t>(options_.ranks);
    const size_t first = static_cast<size_t>(options_.rank) + 1;
    size_t missing = 2 * (ranks - first);
    while (missing > 0) {
      std::optional<Arrival> arrival = acceptor->Next(deadline_);
      if (!arrival.has_value()) {
        std::vector<size_t> absent;
        for (size_t rank = first; rank < ranks; ++rank) {
          if (!(*control)[rank].valid() || !(*data)[rank].valid()) absent.push_back(rank);
        }
        return Fail(Code::kUnavailable,
                    fmt::format("{} was not connected to by {} {}", Member(options_.rank),
                                options_.member, fmt::join(absent, ", ")));
      }
      const std::optional<Hello> hello = Hello::FromWire(arrival->hello);
      // Connections of other starts, and second ones, are dropped.
      if (!hello.has_value() || hello->purpose == Purpose::kJoin || hello->session != session_ ||
          hello->rank <= options_.rank || hello->ranks != options_.ranks) {
        continue;
      }
      std::vector<RankSocket>& kind = hello->purpose == Purpose::kControl ? *control : *data;
      RankSocket& slot = kind[static_cast<size_t>(hello->rank)];
      if (slot.valid()) continue;
      slot = arrival->socket.Release();
      --missing;
    }
    return Status();
  }

  const WorldOptions& options_;
  Seconds deadline_;  // of what is waited for now
  std::string session_;
  std::vector<RankAddress> addresses_;  // by rank
};

Status CheckOptions(const WorldOptions& options) {
  if (options.ranks < 1 || options.ranks > kWorldRanksMax || options.rank < 0 ||
      options.rank >= options.ranks) {
    return InvalidArgument(fmt::format("rank {} of {} ranks; there may be {} ranks, counted from 0",
                                       options.rank, options.ranks, kWorldRanksMax));
  }
  if (options.cluster_key.size() < kClusterKeyBytesMin) {
    return InvalidArgument(fmt::format("the cluster key has {} bytes, it must have {} or more",
                                       options.cluster_key.size(), kClusterKeyBytesMin));
  }
  if (!(options.heartbeat_interval > 0) || options.stall_timeout < 2 * options.heartbeat_interval) {
    return InvalidArgument(
        fmt::format("a peer that beats every {} s cannot be called silent after {} s",
                    options.heartbeat_interval, options.stall_timeout));
  }
  bool fits = options.fingerprint.size() <= kFingerprintEntriesMax;
  for (const FingerprintEntry& entry : options.fingerprint) {
    fits = fits && std::max(entry.name.size(), entry.value.size()) <= kFingerprintTextMax;
  }
  if (!fits) {
    return InvalidArgument(
        fmt::format("the fingerprint has over {} entries, or texts over {} bytes",
                    kFingerprintEntriesMax, kFingerprintTextMax));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<Link>> JoinWorld(const WorldOptions& options) {
  BT_RETURN_IF_ERROR(CheckOptions(options));
  if (options.ranks > 1) return Rendezvous(options).Join();
  BT_ASSIGN_OR_RETURN(std::unique_ptr<PeerWatch> watch,
                      PeerWatch::Create({.rank = 0}, std::vector<RankSocket>(1)));
  return std::unique_ptr<Link>(
      std::make_unique<SocketLink>(0, std::vector<RankSocket>(1), std::move(watch)));
}

}  // namespace baltoro
