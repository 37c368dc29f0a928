#pragma once

// How the ranks of a world of processes find each other. Rank 0 listens at an address that all
// know; the others come there, are compared with it, and hear where everybody else listens; then
// each pair connects. All of it behind the cluster key (handshake.h).

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "comm/link.h"
#include "comm/rank_socket.h"

namespace baltoro {

// One thing that must be the same on all ranks: ("version", "0.1.0"), ("model", hash), a flag. A
// rank that differs is refused with the name and both values.
struct FingerprintEntry {
  std::string name, value;
};
inline constexpr size_t kFingerprintEntriesMax = 64;
inline constexpr size_t kFingerprintTextMax = 256;  // bytes of a name or a value

struct WorldOptions {
  std::string member = "rank";  // what messages call one of them, before its number
  // What they call it once all are joined, by its rank and the host where it listens. Empty: as
  // above.
  std::function<std::string(int32_t rank, const std::string& host)> name = {};
  int32_t rank = 0;
  int32_t ranks = 1;
  // Where rank 0 listens. With a Unix path the ranks listen at path, path.1, path.2, ... for as
  // long as this takes.
  RankAddress meeting = {};
  // Of rank 0 alone: the socket that listens at `meeting` already, so that nobody else can take its
  // port. Taken by JoinWorld. Null: it listens there itself.
  std::shared_ptr<RankSocket> listener = {};
  // Where this rank listens for the others, with TCP. Empty: the address it reaches rank 0 from.
  std::string own_host = {};
  std::string cluster_key = {};  // kClusterKeyBytesMin or more, read from a file by the caller
  std::vector<FingerprintEntry> fingerprint = {};
  // Rank 0 waits so long for the others. Another rank waits so long for rank 0; once there, for as
  // long as rank 0 says that it waits.
  Seconds join_timeout = 60;
  Seconds heartbeat_interval = 0.5;
  Seconds stall_timeout = 4;  // a peer silent for so long is taken for dead
  // Of another rank than 0: called when rank 0 was there and had our key, whatever comes of it.
  std::function<void()> reached = {};
};

inline constexpr int32_t kWorldRanksMax = 256;

// Blocks until all ranks are joined. kInvalidArgument if something must be changed first (options,
// key, fingerprint, protocol version), kUnavailable if ranks did not come in time: names them.
Result<std::unique_ptr<Link>> JoinWorld(const WorldOptions& options);

}  // namespace baltoro
