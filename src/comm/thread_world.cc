#include "comm/thread_world.h"

#include <fmt/format.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"

namespace baltoro {
namespace {

// Two: a rank that has heard all others of collective k has been taken from by them in k - 1, so it
// never waits for a slot in k + 1.
constexpr uint64_t kSlots = 2;

struct Slot {
  MessageTag tag;
  std::vector<std::byte> eager;     // grows to the longest short message seen
  const std::byte* data = nullptr;  // the slot's or, of long messages, the sender's bytes
  size_t bytes = 0;
};

// Messages from one rank to one other. A slot is the sender's until `sent` counts it, then the
// receiver's until `taken` does; only the counters and flags need the lock.
struct Lane {
  Slot slots[kSlots];
  uint64_t sent = 0, taken = 0;
  bool awaited = false;       // the receiver sleeps, and this lane is one that it counts
  bool sender_waits = false;  // for `taken` to move
  bool copying = false;       // the receiver reads a slot
};

struct Sleeper {
  std::condition_variable wake;
  int32_t missing = 0;  // lanes that it still waits for
  bool left = false;
};

}  // namespace

struct ThreadWorld::State {
  explicit State(int32_t count)
      : ranks(count),
        lanes(static_cast<size_t>(count) * static_cast<size_t>(count)),
        sleepers(count) {}

  Lane& LaneOf(int32_t from, int32_t to) {
    return lanes[static_cast<size_t>(from) * static_cast<size_t>(ranks) + static_cast<size_t>(to)];
  }

  // The lock is held. The first failure stays.
  Status Fail(Status why) {
    if (failure.ok()) {
      failure = std::move(why);
      for (Sleeper& sleeper : sleepers) sleeper.wake.notify_all();
    }
    return failure;
  }

  const int32_t ranks;
  std::mutex mutex;
  Status failure;
  std::vector<Lane> lanes;  // [sender, receiver]
  std::vector<Sleeper> sleepers;
};

namespace {

class ThreadLink final : public Link {
 public:
  using State = ThreadWorld::State;
  using Lock = std::unique_lock<std::mutex>;

  ThreadLink(std::shared_ptr<State> state, int32_t rank)
      : state_(std::move(state)), self_(state_->sleepers[static_cast<size_t>(rank)]), rank_(rank) {}

  ~ThreadLink() override {
    const Lock lock(state_->mutex);
    self_.left = true;
    for (Sleeper& sleeper : state_->sleepers) sleeper.wake.notify_all();
  }

  int32_t rank() const override { return rank_; }
  int32_t ranks() const override { return state_->ranks; }

  Status Exchange(const MessageTag& tag,
                  std::span<const Outgoing> outgoing,
                  std::span<const Incoming> incoming,
                  Seconds deadline) override {
    Lock lock(state_->mutex);
    if (!state_->failure.ok()) return state_->failure;
    BT_CHECK(!busy_);
    busy_ = true;
    Status result = SendAll(lock, tag, outgoing, deadline);
    if (result.ok()) result = ReceiveAll(lock, tag, incoming, deadline);
    if (result.ok()) result = WaitUntilTaken(lock, tag, outgoing, deadline);
    if (!result.ok()) WaitUntilUnread(lock, outgoing);
    busy_ = false;
    return result;
  }

  void Abort(const std::string& reason) override {
    const Lock lock(state_->mutex);
    static_cast<void>(state_->Fail(
        Status(Code::kUnavailable, fmt::format("rank {} aborted: {}", rank_, reason))));
  }

  Status status() const override {
    const Lock lock(state_->mutex);
    return state_->failure;
  }

 private:
  bool Left(int32_t peer) const { return state_->sleepers[static_cast<size_t>(peer)].left; }

  Status FailLeft(const MessageTag& tag, int32_t peer) {
    return state_->Fail(
        Status(Code::kUnavailable, fmt::format("rank {} has left, rank {} is in {}", peer, rank_,
                                               OperationName(tag.operation))));
  }

  // False at the deadline.
  bool Sleep(Lock& lock, Seconds deadline) {
    if (deadline >= kNoDeadline) {
      self_.wake.wait(lock);
      return true;
    }
    const auto since_start = std::chrono::duration<double>(deadline);
    const std::chrono::steady_clock::time_point until(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(since_start));
    return self_.wake.wait_until(lock, until) == std::cv_status::no_timeout;
  }

  // Sleeps until `taken` of the lane has reached `count`.
  Status WaitForTaken(
      Lock& lock, const MessageTag& tag, int32_t peer, uint64_t count, Seconds deadline) {
    Lane& lane = state_->LaneOf(rank_, peer);
    bool in_time = true;
    while (lane.taken < count) {
      if (!state_->failure.ok()) return state_->failure;
      if (Left(peer)) return FailLeft(tag, peer);
      if (!in_time) {
        return state_->Fail(
            Status(Code::kUnavailable,
                   fmt::format("{}: rank {} has not taken a message of rank {} in time",
                               OperationName(tag.operation), peer, rank_)));
      }
      lane.sender_waits = true;
      in_time = Sleep(lock, deadline);
    }
    lane.sender_waits = false;
    return Status();
  }

  Status SendAll(Lock& lock,
                 const MessageTag& tag,
                 std::span<const Outgoing> outgoing,
                 Seconds deadline) {
    for (const Outgoing& message : outgoing) {
      const uint64_t sent = state_->LaneOf(rank_, message.peer).sent;
      if (sent < kSlots) continue;
      BT_RETURN_IF_ERROR(WaitForTaken(lock, tag, message.peer, sent - kSlots + 1, deadline));
    }
    lock.unlock();
    for (const Outgoing& message : outgoing) {
      Lane& lane = state_->LaneOf(rank_, message.peer);
      Slot& slot = lane.slots[lane.sent % kSlots];  // `sent` is changed by this thread alone
      slot.tag = tag;
      slot.bytes = message.bytes.size();
      slot.data = message.bytes.data();
      if (message.bytes.empty() || message.bytes.size() > kEagerBytes) continue;
      if (slot.eager.size() < message.bytes.size()) slot.eager.resize(message.bytes.size());
      std::memcpy(slot.eager.data(), message.bytes.data(), message.bytes.size());
      slot.data = slot.eager.data();
    }
    lock.lock();
    if (!state_->failure.ok()) return state_->failure;
    for (const Outgoing& message : outgoing) {
      Lane& lane = state_->LaneOf(rank_, message.peer);
      ++lane.sent;
      if (!lane.awaited) continue;
      lane.awaited = false;
      Sleeper& receiver = state_->sleepers[static_cast<size_t>(message.peer)];
      if (--receiver.missing == 0) receiver.wake.notify_one();
    }
    return Status();
  }

  Status ReceiveAll(Lock& lock,
                    const MessageTag& tag,
                    std::span<const Incoming> incoming,
                    Seconds deadline) {
    self_.missing = 0;
    for (const Incoming& message : incoming) {
      Lane& lane = state_->LaneOf(message.peer, rank_);
      lane.awaited = lane.sent == lane.taken;
      if (lane.awaited) ++self_.missing;
    }
    bool in_time = true;
    while (self_.missing > 0) {
      if (!state_->failure.ok()) return state_->failure;
      std::string absent;
      for (const Incoming& message : incoming) {
        if (!state_->LaneOf(message.peer, rank_).awaited) continue;
        if (Left(message.peer)) return FailLeft(tag, message.peer);
        if (!in_time) absent += fmt::format("{}{}", absent.empty() ? "" : ", ", message.peer);
      }
      if (!in_time) {
        return state_->Fail(
            Status(Code::kUnavailable, fmt::format("{}: rank {} has waited in vain for rank {}",
                                                   OperationName(tag.operation), rank_, absent)));
      }
      in_time = Sleep(lock, deadline);
    }
    if (!state_->failure.ok()) return state_->failure;
    BT_RETURN_IF_ERROR(CheckArrived(tag, incoming));
    for (const Incoming& message : incoming) state_->LaneOf(message.peer, rank_).copying = true;
    lock.unlock();
    for (const Incoming& message : incoming) {
      const Lane& lane = state_->LaneOf(message.peer, rank_);
      const Slot& slot =
          lane.slots[lane.taken % kSlots];  // `taken` is changed by this thread alone
      if (slot.bytes > 0) std::memcpy(message.bytes.data(), slot.data, slot.bytes);
    }
    lock.lock();
    for (const Incoming& message : incoming) {
      Lane& lane = state_->LaneOf(message.peer, rank_);
      lane.copying = false;
      ++lane.taken;
      if (lane.sender_waits) state_->sleepers[static_cast<size_t>(message.peer)].wake.notify_one();
    }
    return Status();
  }

  Status CheckArrived(const MessageTag& tag, std::span<const Incoming> incoming) {
    for (const Incoming& message : incoming) {
      const Lane& lane = state_->LaneOf(message.peer, rank_);
      const Slot& slot = lane.slots[lane.taken % kSlots];
      if (slot.tag == tag && slot.bytes == message.bytes.size()) continue;
      return state_->Fail(
          Status(Code::kInternal,
                 DescribeMismatch(message.peer, slot.tag, slot.bytes, tag, message.bytes.size())));
    }
    return Status();
  }

  // Long messages are read from the caller's memory, which is its own again only after that.
  Status WaitUntilTaken(Lock& lock,
                        const MessageTag& tag,
                        std::span<const Outgoing> outgoing,
                        Seconds deadline) {
    for (const Outgoing& message : outgoing) {
      if (message.bytes.size() <= kEagerBytes) continue;
      const uint64_t sent = state_->LaneOf(rank_, message.peer).sent;
      BT_RETURN_IF_ERROR(WaitForTaken(lock, tag, message.peer, sent, deadline));
    }
    return Status();
  }

  // After a failure nobody begins to read; who has begun ends soon.
  void WaitUntilUnread(Lock& lock, std::span<const Outgoing> outgoing) {
    for (const Outgoing& message : outgoing) {
      Lane& lane = state_->LaneOf(rank_, message.peer);
      lane.sender_waits = true;
      while (lane.copying) self_.wake.wait(lock);
    }
  }

  const std::shared_ptr<State> state_;  // shared with the world and the other ranks' links
  Sleeper& self_;
  const int32_t rank_;
  bool busy_ = false;
};

}  // namespace

ThreadWorld::ThreadWorld(int32_t ranks) : state_(std::make_shared<State>(ranks)) {
  BT_CHECK(ranks > 0);
}
ThreadWorld::~ThreadWorld() = default;

std::unique_ptr<Link> ThreadWorld::Join(int32_t rank) {
  BT_CHECK(rank >= 0 && rank < state_->ranks);
  return std::make_unique<ThreadLink>(state_, rank);
}

}  // namespace baltoro
