#pragma once

// What joins one rank to the others of its world: messages between pairs of ranks, and one failure
// that all of them learn of. Collectives are written once over it (link_communicator.h).
//
// Order: two ranks see the messages between them in the order in which they were sent, whatever
// group they belong to. So what two ranks do together, in any of their groups, they must do in the
// same order. A message that does not fit what its receiver waits for is an error, never a guess.
//
// Threads: Exchange from one thread at a time; Abort and status from any.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/clock.h"
#include "base/status.h"

namespace baltoro {

enum class Operation : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSendReceive,
  kBarrier,
};
const char* OperationName(Operation operation);

// What a message is a part of; sender and receiver must agree.
struct MessageTag {
  uint32_t group = 0;  // a hash of its name and ranks
  Operation operation = Operation::kBarrier;
  bool operator==(const MessageTag&) const = default;
};

// For the error when a message is not the one that is due: "rank 2 sent 512 bytes of ...".
std::string DescribeMismatch(int32_t sender,
                             const MessageTag& sent,
                             size_t sent_bytes,
                             const MessageTag& due,
                             size_t due_bytes);

struct Outgoing {
  int32_t peer = 0;
  std::span<const std::byte> bytes;
};
struct Incoming {
  int32_t peer = 0;
  std::span<std::byte> bytes;
};

// A message up to this size is taken even when its receiver is busy elsewhere, if at most one
// earlier one is still unread. A longer one may have to wait for its receiver.
inline constexpr size_t kEagerBytes = 64 << 10;

// Deadlines beyond this, some 120 years of the monotonic clock, count as none.
inline constexpr Seconds kNoDeadline = 4e9;

class Link {
 public:
  // Leaving is not a failure, but a call of another rank that needs this one fails from here on.
  virtual ~Link() = default;

  virtual int32_t rank() const = 0;
  virtual int32_t ranks() const = 0;

  // Sends and receives all of these at once, at most one each way for a peer, and returns when the
  // outgoing buffers may be changed and the incoming ones are full. `deadline` is a time of
  // MonotonicClock. Any error is the world's failure: every later call of every rank
  // returns it, and no buffer is touched after the return.
  virtual Status Exchange(const MessageTag& tag,
                          std::span<const Outgoing> outgoing,
                          std::span<const Incoming> incoming,
                          Seconds deadline) = 0;

  // Ends every call of every rank with "rank N aborted: REASON". The first failure stays.
  virtual void Abort(const std::string& reason) = 0;
  // OK, or the failure, also when it was noticed outside a call.
  virtual Status status() const = 0;
  // The rank whose end is the failure, where it is one's; else -1.
  virtual int32_t lost() const { return -1; }
};

}  // namespace baltoro
