#include "engine/node_world.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <span>
#include <thread>
#include <utility>

#include "base/log.h"
#include "comm/cluster_key.h"
#include "comm/link_communicator.h"
#include "comm/rank_socket.h"
#include "engine/engine.h"

namespace baltoro {
namespace {

constexpr Seconds kForever = std::numeric_limits<Seconds>::infinity();
constexpr Seconds kTry = 4;    // for one attempt of a node
constexpr Seconds kTell = 10;  // between two lines about who is waited for
constexpr Seconds kFirstTell = 2;
constexpr Seconds kDeaf = 5;
constexpr Seconds kPause = 0.2;  // after an attempt that failed at once
constexpr Seconds kRanksMeet = 60;
constexpr uint64_t kMessageBytesMax = uint64_t{256} << 20;
constexpr size_t kSessionBytes = 16;
// In which a last word leaves.
constexpr std::chrono::milliseconds kFarewell(50);

// The address of ours from which packets to that host go out. Nothing is sent.
Result<std::string> RouteTo(const std::string& host, int32_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kUnavailable, fmt::format("{}: {}", host, gai_strerror(error)));
  }
  std::string own;
  for (const addrinfo* each = found; each != nullptr && own.empty(); each = each->ai_next) {
    const RankSocket socket(::socket(each->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!socket.valid() || connect(socket.get(), each->ai_addr, each->ai_addrlen) != 0) continue;
    const Result<RankAddress> address = LocalAddress(socket.get());
    if (address.ok()) own = address.value().host;
  }
  freeaddrinfo(found);
  if (own.empty()) return Status(Code::kUnavailable, fmt::format("{}: no route", host));
  return own;
}

bool IsLoopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

// Some systems have their own name as a loopback address, where other nodes do not come.
Status CheckListenAddress(const NodeOptions& options) {
  if (options.master_host == "localhost" || IsLoopback(options.master_host)) return {};
  const Result<std::string> own = RouteTo(options.master_host, options.master_port);
  if (!own.ok()) {
    return Status(own.status().code(),
                  fmt::format("{} {}", options.host_flag, own.status().message()));
  }
  if (!IsLoopback(own.value())) return {};
  return InvalidArgument(fmt::format(
      "{} {} is the loopback address {} on the head itself: give an address of the head that the "
      "other nodes reach",
      options.host_flag, options.master_host, own.value()));
}

// Waits for the others, one attempt after another.
class Joiner {
 public:
  explicit Joiner(const NodeOptions& options)
      : options_(options), seen_(clock_.Now()), told_(clock_.Now() - kTell + kFirstTell) {}

  // Of the head, once all are there: the socket at which they met.
  RankSocket TakeListener() { return std::move(twin_); }

  Result<std::unique_ptr<Link>> Run() {
    for (;;) {
      bool reached = options_.node == 0;
      const Seconds begun = clock_.Now();
      Result<std::unique_ptr<Link>> link = Try(reached);
      if (link.ok() || link.status().code() == Code::kInvalidArgument) return link;
      const Seconds now = clock_.Now();
      // The head waits for all that are missing; the others wait for a head that is there.
      if (reached && options_.node != 0) seen_ = now;
      if (options_.patience > 0 && now - seen_ >= options_.patience) return Lost(link.status());
      if (now - told_ >= kTell) {
        told_ = now;
        BT_LOG(Info, "Waiting for {} at {}:{}: {}", Whom(), options_.master_host,
               options_.master_port, link.status().message());
      }
      if (now - begun < kPause) std::this_thread::sleep_for(std::chrono::duration<double>(kPause));
    }
  }

 private:
  std::string Whom() const {
    return options_.node == 0 ? fmt::format("the other nodes of {}", options_.nodes)
                              : std::string("the head node");
  }

  Status Lost(const Status& why) const {
    return Status(Code::kNotFound, fmt::format("{} at {}:{} did not come within {:.0f} s: {}",
                                               Whom(), options_.master_host, options_.master_port,
                                               options_.patience, why.message()));
  }

  Result<std::unique_ptr<Link>> Try(bool& reached) {
    Seconds time = options_.node == 0 ? kTell : kTry;
    if (options_.patience > 0) {
      time = std::min(time, std::max(options_.patience - (clock_.Now() - seen_), kPause));
    }
    WorldOptions world{.member = "node",
                       .rank = options_.node,
                       .ranks = options_.nodes,
                       .meeting = {.host = options_.master_host, .port = options_.master_port},
                       .own_host = options_.own_host,
                       .cluster_key = options_.cluster_key,
                       .fingerprint = options_.fingerprint,
                       .join_timeout = time,
                       .stall_timeout = kNodeStallTimeout};
    world.name = [holds = options_.holds](int32_t node, const std::string& host) {
      const auto at = static_cast<size_t>(node);
      const bool told = at < holds.size() && !holds[at].empty();
      return fmt::format("node {} ({}{})", node, host, told ? ", " + holds[at] : "");
    };
    if (options_.node != 0) {
      world.reached = [&reached] { reached = true; };
      return JoinWorld(world);
    }
    Result<RankSocket> listener = ListenAt(world.meeting);
    if (!listener.ok()) return CannotListen(listener.status());
    deaf_ = 0;
    BT_ASSIGN_OR_RETURN(twin_, Duplicate(listener.value()));
    world.listener = std::make_shared<RankSocket>(std::move(listener.value()));
    Result<std::unique_ptr<Link>> link = JoinWorld(world);
    if (!link.ok()) twin_.Close();
    return link;
  }

  // An engine that ends may hold the port for a moment yet; somebody else keeps it.
  Status CannotListen(const Status& why) {
    if (deaf_ == 0) deaf_ = clock_.Now();
    if (clock_.Now() - deaf_ < kDeaf) return Status(Code::kUnavailable, why.message());
    return InvalidArgument(fmt::format(
        "{}: the head (node 0) needs an address of its own in {} and a free port in {}, the same "
        "on all nodes",
        why.message(), options_.host_flag, options_.port_flag));
  }

  const NodeOptions& options_;
  const MonotonicClock clock_;
  RankSocket twin_;  // of the head's listening socket
  Seconds seen_;
  Seconds told_;
  Seconds deaf_ = 0;  // since when the head cannot listen
};

}  // namespace

Result<std::unique_ptr<NodeWorld>> NodeWorld::Join(const NodeOptions& options) {
  BT_LOG(Info, "Node {} of {}: {} {}:{}", options.node, options.nodes,
         options.node == 0 ? "the others come to" : "the head is at", options.master_host,
         options.master_port);
  if (options.node == 0) BT_RETURN_IF_ERROR(CheckListenAddress(options));
  Joiner joiner(options);
  BT_ASSIGN_OR_RETURN(std::unique_ptr<Link> link, joiner.Run());
  std::string own = options.own_host;
  if (own.empty() && options.node == 0) own = options.master_host;
  if (own.empty()) {
    BT_ASSIGN_OR_RETURN(own, RouteTo(options.master_host, options.master_port));
  }
  std::unique_ptr<NodeWorld> world(
      new NodeWorld(std::move(link), std::move(own), options.cluster_key));
  GroupOptions all{.name = "nodes", .ranks = {}, .call_timeout = kForever};
  for (int32_t node = 0; node < options.nodes; ++node) all.ranks.push_back(node);
  BT_ASSIGN_OR_RETURN(world->all_, JoinGroup(world->link_.get(), all));
  if (options.node == 0) {
    world->late_comers_ = std::make_unique<LateComers>(
        joiner.TakeListener(), options.cluster_key,
        Hello{
            .purpose = Purpose::kJoin, .ranks = options.nodes, .fingerprint = options.fingerprint},
        "node", [](const std::string& line) { BT_LOG(Warning, "A node came too late: {}", line); });
  }
  BT_LOG(Info, "All {} nodes are there", options.nodes);
  return world;
}

Result<std::vector<std::string>> NodeWorld::Gather(std::string_view own) {
  const auto count = static_cast<size_t>(nodes());
  std::vector<uint64_t> sizes(count);
  const uint64_t size = own.size();
  BT_RETURN_IF_ERROR(all_->AllGather(std::as_bytes(std::span(&size, 1)),
                                     std::vector<size_t>(count, sizeof(size)),
                                     std::as_writable_bytes(std::span(sizes))));
  uint64_t total = 0;
  for (const uint64_t each : sizes) {
    if (each > kMessageBytesMax) return Status(Code::kInternal, "a node has too much to say");
    total += each;
  }
  std::string everything(total, '\0');
  BT_RETURN_IF_ERROR(all_->AllGather(std::as_bytes(std::span(own.data(), own.size())),
                                     std::vector<size_t>(sizes.begin(), sizes.end()),
                                     std::as_writable_bytes(std::span(everything))));
  std::vector<std::string> out;
  size_t at = 0;
  for (const uint64_t each : sizes) {
    out.push_back(everything.substr(at, each));
    at += each;
  }
  return out;
}

Status NodeWorld::Send(std::string_view message) {
  uint64_t size = message.size();
  BT_RETURN_IF_ERROR(all_->Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
  std::string copy(message);
  return all_->Broadcast(std::as_writable_bytes(std::span(copy)), 0);
}

Result<std::string> NodeWorld::Receive() {
  uint64_t size = 0;
  BT_RETURN_IF_ERROR(all_->Broadcast(std::as_writable_bytes(std::span(&size, 1)), 0));
  if (size == 0 || size > kMessageBytesMax) {
    return Status(Code::kInternal, "the head sent a message of a size that cannot be");
  }
  std::string message(size, '\0');
  BT_RETURN_IF_ERROR(all_->Broadcast(std::as_writable_bytes(std::span(message)), 0));
  return message;
}

Status NodeWorld::Explain(const Status& why) const {
  if (why.ok() || why.code() != Code::kUnavailable) return why;
  constexpr Seconds kWait = 0.5;
  const MonotonicClock clock;
  for (const Seconds until = clock.Now() + kWait; clock.Now() < until;) {
    if (!status().ok()) return status();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return why;
}

void NodeWorld::Leave() {
  Abort(kServerStopped);
  std::this_thread::sleep_for(kFarewell);
}

Result<std::unique_ptr<Link>> NodeWorld::JoinRank(const RankMeeting& meeting,
                                                  int32_t ranks,
                                                  int32_t rank) const {
  return JoinWorld({.rank = rank,
                    .ranks = ranks,
                    .meeting = meeting.address,
                    .listener = rank == 0 ? meeting.listener : nullptr,
                    .own_host = own_host_,
                    .cluster_key = cluster_key_,
                    .fingerprint = {{.name = "start", .value = meeting.session}},
                    .join_timeout = kRanksMeet,
                    .stall_timeout = kNodeStallTimeout});
}

Result<RankMeeting> AgreeOnMeeting(NodeWorld& world, int32_t node_of_rank_0) {
  RankMeeting meeting;
  std::string own;
  if (world.node() == node_of_rank_0) {
    BT_ASSIGN_OR_RETURN(RankSocket socket, ListenAt({.host = world.own_host(), .port = 0}));
    BT_ASSIGN_OR_RETURN(const RankAddress address, LocalAddress(socket.get()));
    meeting.listener = std::make_shared<RankSocket>(std::move(socket));
    std::array<std::byte, kSessionBytes> random;
    FillRandom(random);
    own = fmt::format("{} {} ", address.port, world.own_host());
    for (const std::byte byte : random) own += fmt::format("{:02x}", static_cast<unsigned>(byte));
  }
  BT_ASSIGN_OR_RETURN(const std::vector<std::string> all, world.Gather(own));
  const std::string& said = all[static_cast<size_t>(node_of_rank_0)];
  const size_t host = said.find(' '), session = said.rfind(' ');
  if (host == std::string::npos || session == host) {
    return Status(Code::kInternal, "the node of rank 0 said something else than where it listens");
  }
  meeting.address = {.host = said.substr(host + 1, session - host - 1),
                     .port = std::atoi(said.c_str())};
  meeting.session = said.substr(session + 1);
  return meeting;
}

}  // namespace baltoro
