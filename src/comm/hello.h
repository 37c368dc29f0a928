#pragma once

// The first frame on every connection between ranks: who comes, what for, and what its world is.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "comm/rank_socket.h"
#include "comm/rendezvous.h"

namespace baltoro {

enum class Purpose : uint32_t {
  kJoin = 1,     // to rank 0: hear where the others are
  kControl = 2,  // of a pair
  kData = 3,     // of a pair
  kReplica = 4,  // to the door that serves the replicas of several nodes: rank is the replica's
};

inline constexpr uint32_t kHelloRanksMax = 1024;

struct Hello {
  Purpose purpose = Purpose::kJoin;
  int32_t rank = 0, ranks = 0;
  // Of the pairs: connections of an earlier start do not get in. Of a replica: its node's process.
  std::string session = {};
  RankAddress address = {};  // of kJoin
  // Of kJoin and kReplica:
  std::vector<FingerprintEntry> fingerprint = {};

  std::string ToWire() const;
  // Nothing if the bytes are no hello, or one beyond the limits of rendezvous.h.
  static std::optional<Hello> FromWire(const std::string& bytes);
};

// Empty if the peer's world is ours, else what differs, with both values.
// `member`: what one of the world is called.
std::string Difference(const Hello& own, const Hello& peer, const std::string& member);

// Two that meet are not of one kind: one is a node of one engine, the other has a replica for
// itself. `came` is what the visitor is. The frame tells it so, in the form in which it expects an
// answer.
std::string OtherKind(Purpose came);
std::string OtherKindFrame(Purpose came);
// How those who come with kJoin and kReplica are refused: the first number of an answer, then, for
// kJoin, whether something must be changed before it comes again, and the reason.
inline constexpr uint32_t kRefusedAnswer = 2;
inline constexpr size_t kRefusalMax = 4096;
std::string JoinRefusal(const Status& why);
std::string ReplicaRefusal(std::string_view why);

void PutAddress(WireWriter* out, const RankAddress& address);
RankAddress GetAddress(WireReader* in);

// What a peer said, fit for a log line: control characters and bytes over 126 become '?'.
std::string Printable(std::string_view text);

}  // namespace baltoro
