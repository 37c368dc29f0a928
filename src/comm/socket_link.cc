#include "comm/socket_link.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace baltoro {
namespace {

// How long a broken data connection waits for the watch to say why.
constexpr Seconds kReasonWait = 0.5;

}  // namespace

SocketLink::SocketLink(int32_t rank, std::vector<RankSocket> data, std::unique_ptr<PeerWatch> watch)
    : rank_(rank), peers_(data.size()), watch_(std::move(watch)) {
  for (size_t r = 0; r < data.size(); ++r) peers_[r].data = std::move(data[r]);
  flights_.reserve(2 * data.size());
  polls_.reserve(2 * data.size() + 1);
}

// The goodbye goes out before the data connections close.
SocketLink::~SocketLink() {
  watch_.reset();
}

void SocketLink::Abort(const std::string& reason) {
  static_cast<void>(watch_->Fail(Status(
      Code::kUnavailable, fmt::format("{} {} aborted: {}", watch_->member(), rank_, reason))));
}

Status SocketLink::Exchange(const MessageTag& tag,
                            std::span<const Outgoing> outgoing,
                            std::span<const Incoming> incoming,
                            Seconds deadline) {
  if (watch_->failed()) return watch_->status();
  BT_CHECK(!busy_.exchange(true));
  flights_.clear();
  for (const Outgoing& message : outgoing) {
    // Only read: a flight that sends passes its bytes to sendmsg, whose type knows no const.
    auto* bytes = const_cast<std::byte*>(message.bytes.data());
    AddFlight(tag, message.peer, /*sending=*/true, std::span(bytes, message.bytes.size()));
  }
  for (const Incoming& message : incoming) {
    AddFlight(tag, message.peer, /*sending=*/false, message.bytes);
  }
  Status result = RunFlights(tag, deadline);
  busy_.store(false);
  return result;
}

void SocketLink::AddFlight(const MessageTag& tag,
                           int32_t peer,
                           bool sending,
                           std::span<std::byte> bytes) {
  BT_CHECK(peer >= 0 && peer < ranks() && peer != rank_);
  Header header{};
  if (sending) {
    header = {.group = tag.group,
              .operation = static_cast<uint32_t>(tag.operation),
              .count = peers_[static_cast<size_t>(peer)].sent++,
              .bytes = bytes.size()};
  }
  flights_.push_back({.peer = peer,
                      .sending = sending,
                      .header = header,
                      .bytes = bytes.data(),
                      .size = bytes.size(),
                      .done = 0});
}

Status SocketLink::RunFlights(const MessageTag& tag, Seconds deadline) {
  for (Flight& flight : flights_) {
    if (flight.sending) BT_RETURN_IF_ERROR(Advance(tag, &flight));
  }
  while (true) {
    const auto waiting = std::remove_if(flights_.begin(), flights_.end(),
                                        [](const Flight& f) { return f.finished(); });
    flights_.erase(waiting, flights_.end());
    if (flights_.empty()) return Status();
    polls_.clear();
    for (const Flight& flight : flights_) {
      const int fd = peers_[static_cast<size_t>(flight.peer)].data.get();
      const short events = flight.sending ? POLLOUT : POLLIN;
      polls_.push_back({.fd = fd, .events = events, .revents = 0});
    }
    polls_.push_back({.fd = watch_->failure_fd(), .events = POLLIN, .revents = 0});
    const int ready = poll(polls_.data(), polls_.size(), PollMilliseconds(deadline));
    if (watch_->failed()) return watch_->status();
    if (ready == 0 && MonotonicClock().Now() >= deadline) return FailLate(tag);
    if (ready <= 0) continue;
    for (size_t i = 0; i < flights_.size(); ++i) {
      if (polls_[i].revents != 0) BT_RETURN_IF_ERROR(Advance(tag, &flights_[i]));
    }
  }
}

// Sends or receives what the socket takes or has, header and bytes in one system call. Never reads
// beyond the message that is due.
Status SocketLink::Advance(const MessageTag& tag, Flight* flight) {
  const int fd = peers_[static_cast<size_t>(flight->peer)].data.get();
  while (!flight->finished()) {
    iovec parts[2];
    size_t count = 0, skipped = flight->done;
    if (skipped < sizeof(Header)) {
      auto* header = reinterpret_cast<std::byte*>(&flight->header);
      parts[count++] = {.iov_base = header + skipped, .iov_len = sizeof(Header) - skipped};
      skipped = sizeof(Header);
    }
    skipped -= sizeof(Header);
    if (skipped < flight->size) {
      parts[count++] = {.iov_base = flight->bytes + skipped, .iov_len = flight->size - skipped};
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = count;
    const ssize_t moved = flight->sending ? sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
                                          : recvmsg(fd, &message, MSG_DONTWAIT);
    if (moved < 0 && errno == EINTR) continue;
    if (moved < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Status();
    if (moved <= 0) return FailLost(tag, flight->peer);
    const bool had_header = flight->done >= sizeof(Header);
    flight->done += static_cast<size_t>(moved);
    if (flight->sending || had_header || flight->done < sizeof(Header)) continue;
    BT_RETURN_IF_ERROR(CheckHeader(tag, *flight));
  }
  return Status();
}

Status SocketLink::CheckHeader(const MessageTag& tag, const Flight& flight) {
  const Header& header = flight.header;
  uint64_t& received = peers_[static_cast<size_t>(flight.peer)].received;
  if (header.count != received) {
    return watch_->Fail(
        Status(Code::kInternal, fmt::format("{} {} sent message {}, due is {}", watch_->member(),
                                            flight.peer, header.count, received)));
  }
  ++received;
  const MessageTag sent{.group = header.group,
                        .operation = static_cast<Operation>(std::min(header.operation, 255u))};
  if (sent == tag && header.bytes == flight.size) return Status();
  return watch_->Fail(
      Status(Code::kInternal, DescribeMismatch(flight.peer, sent, header.bytes, tag, flight.size)));
}

// The control connection ends together with this one, and may know whose fault it was.
Status SocketLink::FailLost(const MessageTag& tag, int32_t peer) {
  const Seconds until = MonotonicClock().Now() + kReasonWait;
  while (!watch_->failed() && !watch_->Left(peer) && MonotonicClock().Now() < until) {
    pollfd wait{.fd = watch_->failure_fd(), .events = POLLIN, .revents = 0};
    static_cast<void>(poll(&wait, 1, 10));
  }
  return watch_->Fail(Status(Code::kUnavailable,
                             fmt::format("{} {}, {} is in {}", watch_->NameOf(peer),
                                         watch_->Left(peer) ? "has left" : "closed its connection",
                                         watch_->NameOf(rank_), OperationName(tag.operation))),
                      peer);
}

Status SocketLink::FailLate(const MessageTag& tag) {
  std::vector<int32_t> late;
  for (const Flight& flight : flights_) late.push_back(flight.peer);
  std::sort(late.begin(), late.end());
  late.erase(std::unique(late.begin(), late.end()), late.end());
  return watch_->Fail(Status(
      Code::kUnavailable,
      fmt::format("{0}: {1} {2} has waited in vain for {1} {3}", OperationName(tag.operation),
                  watch_->member(), rank_, fmt::join(late, ", "))));
}

}  // namespace baltoro
