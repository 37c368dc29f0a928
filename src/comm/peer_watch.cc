#include "comm/peer_watch.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/wire.h"
#include "comm/hello.h"

namespace baltoro {
namespace {

// A control frame: its kind; of kAborts alone, the rank that was lost (below 0: none) and a text.
// All as WireWriter has them.
constexpr uint32_t kBeats = 1, kLeaves = 2, kAborts = 3;
constexpr size_t kAbortTextMax = 512;
constexpr size_t kHeaderBytes = 12;
// This thread was not run for so long (a stopped process, a machine asleep): the peers' silence was
// ours.
constexpr Seconds kOwnGap = 1;

void Raise(int event_fd) {
  const uint64_t one = 1;
  // It can fail only when it is raised already.
  [[maybe_unused]] const ssize_t written = write(event_fd, &one, sizeof(one));
}

RankSocket EventFd() {
  return RankSocket(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
}

}  // namespace

Result<std::unique_ptr<PeerWatch>> PeerWatch::Create(const WatchOptions& options,
                                                     std::vector<RankSocket> controls) {
  RankSocket wake = EventFd(), failure = EventFd();
  if (!wake.valid() || !failure.valid()) {
    return Status(Code::kResourceExhausted, "no more file descriptors");
  }
  return std::unique_ptr<PeerWatch>(
      new PeerWatch(options, std::move(controls), std::move(wake), std::move(failure)));
}

PeerWatch::PeerWatch(const WatchOptions& options,
                     std::vector<RankSocket> controls,
                     RankSocket wake,
                     RankSocket failure)
    : options_(options),
      peers_(controls.size()),
      wake_fd_(std::move(wake)),
      failure_fd_(std::move(failure)) {
  const Seconds now = MonotonicClock().Now();
  for (size_t r = 0; r < controls.size(); ++r) {
    peers_[r].control = std::move(controls[r]);
    peers_[r].heard = now + options_.start_grace;
  }
  thread_ = std::thread([this] { Run(); });
}

PeerWatch::~PeerWatch() {
  stop_.store(true);
  Raise(wake_fd_.get());
  thread_.join();
}

Status PeerWatch::Fail(Status why, int32_t lost) {
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) {
    failure_ = std::move(why);
    lost_ = lost;
    failed_.store(true, std::memory_order_release);
    Raise(failure_fd_.get());
    Raise(wake_fd_.get());
  }
  return failure_;
}

Status PeerWatch::status() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int32_t PeerWatch::lost() const {
  const std::lock_guard lock(mutex_);
  return lost_;
}

std::string PeerWatch::NameOf(int32_t rank) const {
  const auto at = static_cast<size_t>(rank);
  if (at < options_.names.size()) return options_.names[at];
  return fmt::format("{} {}", options_.member, rank);
}

void PeerWatch::Run() {
  MonotonicClock clock;
  Seconds next_beat = clock.Now(), last_round = clock.Now();
  while (!stop_.load() && !failed()) {
    const Seconds before = clock.Now();
    if (before >= next_beat) {
      Beat();
      next_beat = before + options_.heartbeat_interval;
    }
    PollOnce(next_beat);
    const Seconds now = clock.Now();
    const Seconds gap = now - last_round - options_.heartbeat_interval;
    if (gap > kOwnGap) {
      for (Peer& peer : peers_) peer.heard += gap;
    }
    last_round = now;
    CheckSilence(now);
  }
  // A failure is told even if the link is about to end, so that nobody takes it for a goodbye.
  if (failed()) {
    Tell(kAborts, status().message().substr(0, kAbortTextMax));
  } else {
    Tell(kLeaves, "");
  }
  for (Peer& peer : peers_) peer.control.Close();
}

void PeerWatch::PollOnce(Seconds until) {
  std::vector<pollfd> polls = {{.fd = wake_fd_.get(), .events = POLLIN, .revents = 0}};
  for (const Peer& peer : peers_) {
    polls.push_back({.fd = peer.control.get(), .events = POLLIN, .revents = 0});  // -1 is skipped
  }
  if (poll(polls.data(), polls.size(), PollMilliseconds(until)) <= 0) return;
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (polls[r + 1].revents != 0) Read(static_cast<int32_t>(r));
  }
}

void PeerWatch::Read(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  char bytes[1024];
  const ssize_t got = recv(peer.control.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    peer.control.Close();
    static_cast<void>(Fail(
        Status(Code::kUnavailable, fmt::format("{} closed its connection", NameOf(rank))), rank));
    return;
  }
  peer.heard = MonotonicClock().Now();
  peer.unread.append(bytes, static_cast<size_t>(got));
  TakeFrames(rank);
}

void PeerWatch::TakeFrames(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  while (peer.unread.size() >= kHeaderBytes) {
    WireReader header(peer.unread);
    const auto kind = header.Get<uint32_t>();
    const auto lost = header.Get<int32_t>();
    const auto text_bytes = header.Get<uint32_t>();
    const bool known = kind == kBeats || kind == kLeaves || kind == kAborts;
    if (!known || text_bytes > kAbortTextMax) {
      peer.control.Close();
      static_cast<void>(Fail(Status(
          Code::kUnavailable, fmt::format("{} sent what is no control message", NameOf(rank)))));
      return;
    }
    if (peer.unread.size() < kHeaderBytes + text_bytes) return;
    const std::string text = Printable(peer.unread.substr(kHeaderBytes, text_bytes));
    peer.unread.erase(0, kHeaderBytes + text_bytes);
    if (kind == kBeats) continue;
    peer.control.Close();
    if (kind == kLeaves) {
      peer.left.store(true);
    } else {
      const bool known_rank = lost >= 0 && static_cast<size_t>(lost) < peers_.size();
      static_cast<void>(Fail(Status(Code::kUnavailable, text), known_rank ? lost : -1));
    }
    return;
  }
}

void PeerWatch::Beat() {
  Tell(kBeats, "");
}

void PeerWatch::CheckSilence(Seconds now) {
  for (size_t r = 0; r < peers_.size(); ++r) {
    if (!peers_[r].control.valid() || now - peers_[r].heard <= options_.stall_timeout) continue;
    const auto rank = static_cast<int32_t>(r);
    static_cast<void>(Fail(
        Status(Code::kUnavailable,
               fmt::format("{} has been silent for {:.1f} s", NameOf(rank), now - peers_[r].heard)),
        rank));
  }
}

// Never waits: a peer that does not read its few bytes a second has a full buffer after hours, and
// is silent long before. A frame that goes out in part ends the connection.
void PeerWatch::Tell(uint32_t kind, const std::string& text) {
  WireWriter frame;
  frame.Put(kind);
  frame.Put(kind == kAborts ? lost() : -1);
  frame.PutBytes(text);
  for (Peer& peer : peers_) {
    if (!peer.control.valid()) continue;
    const ssize_t put = send(peer.control.get(), frame.bytes().data(), frame.bytes().size(),
                             MSG_DONTWAIT | MSG_NOSIGNAL);
    const bool in_part = put > 0 && static_cast<size_t>(put) < frame.bytes().size();
    if (in_part) shutdown(peer.control.get(), SHUT_RDWR);  // the next read says so
  }
}

}  // namespace baltoro
