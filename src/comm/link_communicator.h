#pragma once

// The collectives, written once, by direct exchange over a Link:
//
//   short all-reduce  every rank sends all it has to every other and sums alone: one exchange
//   long all-reduce   rank r gets part r from all, sums it, and sends the sum to all: two exchanges
//
// Both sum in the order of the ranks, so their bits are the same.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/communicator.h"
#include "comm/link.h"

namespace baltoro {

struct GroupOptions {
  std::string name = {};            // for messages, "tp"; the same on all ranks of the group
  std::vector<int32_t> ranks = {};  // ranks of the world, each once; the order is that of the group
  // A whole call must be done by then. Infinity where a rank may rightly wait for hours: a peer
  // that died or stands still is noticed without it.
  Seconds call_timeout = 60;
};

// `link` is borrowed and must outlive the communicator. kInvalidArgument if the ranks are not ones
// of the link's world, are named twice, or leave out the link's own.
Result<std::unique_ptr<Communicator>> JoinGroup(Link* link, const GroupOptions& options);

}  // namespace baltoro
